// The program kda. Exit codes: 0 done, 1 failed, 2 called wrongly.
#include <signal.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <system_error>

#include "commands.h"
#include "kda/error.hpp"
#include "kda/kda.hpp"
#include "report.h"

namespace kda::cli {
namespace {

constexpr int kFailed = 1, kUsage = 2;

int usage(const CLI::App& app, const CLI::ParseError& error) {
  std::string help = "kda";
  for (const CLI::App* at = &app; !at->get_subcommands().empty();) {
    at = at->get_subcommands().front();
    help += " " + at->get_name();
  }
  std::string message = error.what();
  const auto extras = app.remaining(true);
  if (!extras.empty()) {
    const bool is_command = app.get_subcommands().empty() && !extras.front().starts_with('-');
    message = extras.front() + ": no such " + (is_command ? "command" : "argument");
  } else if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) {
    const auto end = message.find(" is required");
    message =
        app.get_subcommands().empty() ? "COMMAND: absent" : message.substr(0, end) + ": absent";
  }
  if (message.find("; accepted: ") == message.npos) {
    message += "; accepted: what `" + help + " --help` lists";
  }
  print_error(message);
  return kUsage;
}

int run(int argc, char** argv) {
  CLI::App app("Kimi Delta Attention and its family, computed and checked.", "kda");
  app.set_version_flag("--version", std::string("kda ") + version());
  app.footer("\n`kda COMMAND --help` says more, with examples. Try: kda info");
  app.require_subcommand(1);
  int code = 0;
  add_demo(app, code);
  add_run(app, code);
  add_verify(app, code);
  add_range(app, code);
  add_audit(app, code);
  add_bench(app, code);
  add_report(app, code);
  add_info(app, code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    // Help for a command that is none would hide the mistake.
    if (app.get_subcommands().empty() && !app.remaining(true).empty()) return usage(app, help);
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    return usage(app, error);
  }
  return code;
}

int guarded(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const Error& error) {
    print_error(error.what());
  } catch (const std::bad_alloc&) {
    print_error("memory: not enough; accepted: a smaller case, or a machine with more");
  } catch (const std::system_error& error) {
    // What cannot be printed is main's to report.
    if (std::ferror(stdout) == 0) print_error(std::string("internal error: ") + error.what());
  } catch (const std::exception& error) {
    print_error(std::string("internal error: ") + error.what());
  }
  return kFailed;
}

}  // namespace
}  // namespace kda::cli

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);  // a pipe sees each line when it is there
  ::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is a write error, not the end
  const int code = kda::cli::guarded(argc, argv);
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    kda::cli::print_error(std::string("stdout: ") + std::strerror(errno) +
                          "; accepted: an output that takes all of it");
    return 1;
  }
  return code;
}
