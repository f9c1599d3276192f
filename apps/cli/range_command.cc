// kda range: how wide a window the number format allows.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "audit_flags.h"
#include "commands.h"
#include "kda/kda.hpp"
#include "range_json.h"
#include "range_model.h"
#include "windows.h"

namespace kda::cli {
namespace {

constexpr const char* kFooter = R"(
The decay between two tokens of a window is a product of a factor that grows with the distance from
a reference and one that shrinks. Both have to stay within the number format, and with them the
reference decides how many keys a window may hold.

Examples:
  kda range                                  a bound of -5, bf16
  kda range --lower-bound -1.5 --format fp16
  kda range --json)";

std::string power(double bits) { return fmt::format("2^{:.1f}", bits); }

void print_steps(const RangeArgs& args) {
  fmt::print("{:>8}  {:>10}  {:>10}  {}\n", "distance", "grows to", "shrinks to",
             args.format->name);
  std::string before;
  for (const Step& step : steps(args.lower_bound, *args.format)) {
    std::string state = step.overflows ? "overflows" : "";
    if (step.vanishes || step.underflows) {
      state += state.empty() ? "" : ", ";
      state += step.vanishes ? "is zero" : "is below the normal numbers";
    }
    // Rows where nothing new happens are left out, but for a few to show the course.
    const bool few = step.distance <= 2 || step.distance % 5 == 0;
    if (few || state != before) {
      fmt::print("{:>8}  {:>10}  {:>10}  {}\n", step.distance, power(step.bits),
                 power(0 - step.bits), state);
    }
    before = state;
  }
}

void print_windows(const RangeArgs& args) {
  fmt::print("\n{:<10}{:>6}{:>9}{:>9}{:>7}{:>7}{:>12}{:>12}\n", "reference", "window", "largest",
             "shift m", args.format->name, "fits", "loss", "with room");
  for (const Reference reference : kFactored) {
    for (const int tokens : kWindows) {
      const WindowRange w =
          window_range(reference, tokens, args.lower_bound, *args.format, args.channels);
      fmt::print(
          "{:<10}{:>6}{:>9}{:>9}{:>7}{:>7}{:>12}{:>12}\n", name(reference), tokens, power(w.most),
          w.shift, w.in_format ? "yes" : "no", w.fits ? "yes" : "no",
          w.in_format ? fmt::format("{:.1e}", w.loss) : "-",
          w.in_format ? fmt::format("{:.1e}", std::ldexp(w.loss, -headroom_bits(reference))) : "-");
    }
  }
  fmt::print(
      "fits: by the library's rule, which leaves room for operands and sums; it never rebases in\n"
      "fp16. loss: of a score of unit query and key, {} channels, if operands below the normal\n"
      "numbers count as zero: at most sqrt({}) 2^{} 2^largest. with room: as the CPU backend "
      "scales.\n",
      args.channels, args.channels, args.format->smallest);
}

void print_widest(const RangeArgs& args) {
  fmt::print("\nwidest window at {} in {}:\n", args.lower_bound, args.format->name);
  for (const Reference reference : kFactored) {
    const WidestWindow w = widest_window(reference, args.lower_bound, *args.format);
    fmt::print("  {:<10} {:>3} keys{}; {} tokens are in range; the library takes {}\n",
               name(reference), w.eights, reference == Reference::midpoint ? ", not causal" : "",
               w.tokens, w.library > 0 ? fmt::format("{}", w.library) : std::string("none"));
  }
}

void print_kept() {
  fmt::print("\nentries of a diagonal block that the causal mask keeps:\n");
  for (const int tokens : kWindows) {
    fmt::print("  {:>2} keys  {:>4} of {:>4}\n", tokens, kept_entries(tokens), tokens * tokens);
  }
}

int range(const RangeArgs& args, bool as_json) {
  if (as_json) {
    fmt::print("{}\n", range_json(args).dump(1));
    return 0;
  }
  fmt::print("Every gate at {}: {:.3f} bits a token\n\n", args.lower_bound,
             steps(args.lower_bound, *args.format, 1).back().bits);
  print_steps(args);
  print_windows(args);
  print_widest(args);
  print_kept();
  return 0;
}

}  // namespace

void add_range(CLI::App& app, int& code) {
  struct Chosen {
    RangeArgs args;
    bool as_json = false;
  };
  auto chosen = std::make_shared<Chosen>();
  CLI::App* command = app.add_subcommand("range", "How many keys a window may hold, and why");
  command->footer(kFooter);
  add_bound(*command, chosen->args.lower_bound);
  command
      ->add_option_function<std::string>(
          "--format",
          [chosen](const std::string& text) {
            chosen->args.format = format_of(text);
            if (chosen->args.format == nullptr) refuse_flag("--format", text, format_names());
          },
          "Number format of the factors: " + format_names())
      ->type_name("NAME");
  add_number<int>(*command, "--channels", "Key channels, for the loss (default 128)", 1, 1 << 20,
                  "1 to 1048576", chosen->args.channels);
  command->add_flag("--json", chosen->as_json, "Print a JSON object");
  command->callback([chosen, &code] { code = range(chosen->args, chosen->as_json); });
}

}  // namespace kda::cli
