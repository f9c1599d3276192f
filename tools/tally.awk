# Reads what a GoogleTest program printed; shows the output of tests that failed and one line for
# the whole, and writes "passed failed skipped" to the file `tally`. A test that began and did not
# end has crashed; tests that the program announced and did not come to count as failed.
# Variables: name, exit_status, tally.

/^\[==========\] Running [0-9]+ tests? from/ { announced = $3 }

/^\[ RUN      \]/ {
  running = $0
  sub(/^\[ RUN      \] /, "", running)
  output = ""
}

running != "" { output = output $0 "\n" }

running != "" && /\[       OK \]/ { passed++; running = "" }
running != "" && /\[  SKIPPED \]/ { skipped++; running = "" }
running != "" && /\[  FAILED  \]/ { failed++; running = ""; printf "%s", output }

END {
  if (running != "") {
    how = exit_status == 124 ? "its time was up" : "exit status " exit_status
    printf "%s%s: it ended here (%s), in %s\n", output, name, how, running
    failed++
  }
  missing = announced - passed - failed - skipped
  if (missing > 0) {
    print name ": " missing " tests were not run after that"
    failed += missing
  }
  # Some failures belong to no test: a suite's set-up, a leak found at exit.
  if (exit_status != 0 && failed == 0) {
    printf "%s: exit status %d, though no test failed:\n", name, exit_status
    while ((getline line < FILENAME) > 0) tail[n++ % 40] = line
    for (i = (n > 40 ? n - 40 : 0); i < n; i++) print tail[i % 40]
    failed++
  }
  printf "%s: %d passed, %d failed, %d skipped\n", name, passed, failed, skipped
  print passed + 0, failed + 0, skipped + 0 > tally
}
