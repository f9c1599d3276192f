#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "temporary_folder.h"

namespace kda::test {

inline std::string contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// A program that runs beside the test.
class Subprocess {
 public:
  // argv[0] is looked up in PATH. stdin is empty, stdout and stderr are kept.
  explicit Subprocess(std::vector<std::string> argv) {
    std::vector<char*> pointers;
    for (std::string& arg : argv) pointers.push_back(arg.data());
    pointers.push_back(nullptr);
    const std::string out = logs_.file("out"), err = logs_.file("err");
    pid_ = ::fork();
    if (pid_ < 0) throw std::runtime_error("fork");
    if (pid_ != 0) return;
    redirect("/dev/null", O_RDONLY, STDIN_FILENO);
    redirect(out.c_str(), O_WRONLY | O_CREAT, STDOUT_FILENO);
    redirect(err.c_str(), O_WRONLY | O_CREAT, STDERR_FILENO);
    ::execvp(pointers[0], pointers.data());
    ::_exit(127);
  }
  ~Subprocess() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Subprocess(const Subprocess&) = delete;
  Subprocess& operator=(const Subprocess&) = delete;

  void send(int signal) { ::kill(pid_, signal); }

  // The exit code, or minus the signal that ended it.
  int wait() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = 0;
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
  }

  std::string out() const { return contents(logs_.file("out")); }
  std::string err() const { return contents(logs_.file("err")); }

 private:
  static void redirect(const char* path, int flags, int to) {
    const int fd = ::open(path, flags, 0600);
    if (fd < 0 || ::dup2(fd, to) < 0) ::_exit(126);
    ::close(fd);
  }

  TemporaryFolder logs_;
  pid_t pid_ = 0;
};

struct Finished {
  int code = 0;
  std::string out, err;
};

inline Finished run_program(const std::vector<std::string>& argv) {
  Subprocess process(argv);
  const int code = process.wait();
  return {code, process.out(), process.err()};
}

}  // namespace kda::test
