/* What tests/c_api_program.c gives to the tests. */
#ifndef KDA_TESTS_C_API_PROGRAM_H
#define KDA_TESTS_C_API_PROGRAM_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* 0, or the line that went wrong, and why in text. */
int c_api_program(char* text, size_t capacity);

#ifdef __cplusplus
}
#endif

#endif
