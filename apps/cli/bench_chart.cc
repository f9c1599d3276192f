// kda bench --scaling --svg: the cost of a token as a picture, both axes logarithmic.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "bench.h"

namespace kda::cli {
namespace {

struct Line {
  std::string name, colour;
  bool dashed = false;
  std::vector<std::pair<double, double>> points;
};

// A span of powers of a base, and where a value lies in it, 0 to 1.
struct Axis {
  double low = 1, high = 1, base = 10;

  void include(double x) {
    low = std::min(low, std::pow(base, std::floor(std::log(x) / std::log(base) + 1e-9)));
    high = std::max(high, std::pow(base, std::ceil(std::log(x) / std::log(base) - 1e-9)));
  }
  double place(double x) const { return std::log(x / low) / std::log(high / low); }
  std::vector<double> ticks() const {
    std::vector<double> all;
    for (double x = low; x < high * 1.01; x *= base) all.push_back(x);
    return all;
  }
};

constexpr double kWidth = 460, kHeight = 320, kLeft = 70, kTop = 46, kBottom = 50, kRight = 20;

class Chart {
 public:
  Chart(double offset, std::string title, std::string x_name, std::vector<Line> lines)
      : offset_(offset),
        title_(std::move(title)),
        x_name_(std::move(x_name)),
        lines_(std::move(lines)) {
    x_.base = 2;
    x_.low = x_.high = lines_.front().points.front().first;
    y_.low = y_.high = 1000;
    for (const Line& line : lines_) {
      for (const auto& [x, y] : line.points) x_.include(x), y_.include(y);
    }
    x_.high = std::max(x_.high, 2 * x_.low);
  }

  std::string svg() const {
    std::string s = text(offset_ + kLeft, kTop - 24, "start", "font-weight=\"bold\"", title_);
    for (const double y : y_.ticks()) {
      s += stroke(x_.low, y, x_.high, y, "#ddd");
      s += text(offset_ + kLeft - 6, place_y(y) + 4, "end", "", fmt::format("{:g}", y));
    }
    for (const double x : x_.ticks()) {
      s += text(place_x(x), kTop + kHeight + 16, "middle", "",
                x >= 1024 ? fmt::format("{:g}K", x / 1024) : fmt::format("{:g}", x));
    }
    s += text(offset_ + kLeft + kWidth / 2, kTop + kHeight + 36, "middle", "", x_name_);
    double row = kTop + 14;
    for (const Line& line : lines_) {
      std::string points;
      for (const auto& [x, y] : line.points) {
        points += fmt::format("{:.1f},{:.1f} ", place_x(x), place_y(y));
      }
      s += fmt::format(
          "<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"2\"{} points=\"{}\"/>\n",
          line.colour, line.dashed ? " stroke-dasharray=\"5 4\"" : "", points);
      s += text(offset_ + kLeft + 10, row, "start", fmt::format("fill=\"{}\"", line.colour),
                line.name);
      row += 17;
    }
    return s;
  }

 private:
  double place_x(double x) const { return offset_ + kLeft + kWidth * x_.place(x); }
  double place_y(double y) const { return kTop + kHeight * (1 - y_.place(y)); }

  std::string stroke(double x0, double y0, double x1, double y1, const char* colour) const {
    return fmt::format(
        "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\"/>\n",
        place_x(x0), place_y(y0), place_x(x1), place_y(y1), colour);
  }

  static std::string text(double x, double y, const char* anchor, const std::string& style,
                          const std::string& what) {
    return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" {}>{}</text>\n", x, y,
                       anchor, style, what);
  }

  const double offset_;
  const std::string title_, x_name_;
  const std::vector<Line> lines_;
  Axis x_, y_;
};

std::vector<Line> lines_of(const std::vector<ScalingRow>& rows, const std::string& series,
                           bool with_softmax) {
  std::vector<Line> lines = {{"recurrent", "#777", false, {}},
                             {"fp32", "#1f6fb4", false, {}},
                             {"mixed", "#c0392b", false, {}},
                             {"softmax attention's products at the peak", "#555", true, {}}};
  for (const ScalingRow& r : rows) {
    if (r.series != series) continue;
    const auto x = static_cast<double>(series == "tokens" ? r.tokens : r.heads);
    for (Line& line : lines) {
      if (line.name == r.kernel) line.points.emplace_back(x, r.best);
    }
    if (r.kernel == lines.front().name) lines.back().points.emplace_back(x, r.softmax);
  }
  if (!with_softmax) lines.pop_back();
  return lines;
}

}  // namespace

std::string to_svg(const std::vector<ScalingRow>& rows) {
  const auto row = [&](const char* series) {
    return *std::ranges::find_if(rows, [&](const ScalingRow& r) { return r.series == series; });
  };
  const ScalingRow tokens = row("tokens"), heads = row("heads");
  const double step = kLeft + kWidth + kRight;
  const Chart charts[] = {{0, fmt::format("ns per token and head, {} heads", tokens.heads),
                           "tokens", lines_of(rows, "tokens", true)},
                          {step, fmt::format("ns per token and head, {} tokens", heads.tokens),
                           "heads", lines_of(rows, "heads", false)}};
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
      "viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"sans-serif\" font-size=\"12\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
      2 * step, kTop + kHeight + kBottom);
  for (const Chart& chart : charts) svg += chart.svg();
  svg += fmt::format(
      "<text x=\"{:.0f}\" y=\"16\" text-anchor=\"end\" fill=\"#777\">{}, {} threads</text>\n",
      2 * step - kRight, name(tokens.ran.isa), tokens.ran.threads);
  return svg + "</svg>\n";
}

}  // namespace kda::cli
