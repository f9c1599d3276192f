# How every target of libkda is compiled. One place, because results promise to be the same bits:
# contraction is off everywhere, and only src/cpu may use more than the baseline instruction set.

set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  # Highway's dispatch needs a vector baseline: with plain x86-64 it is one-lane scalar.
  set(KDA_CPU_FLAGS -msse4.2 -maes -mpclmul)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  # What Highway's NEON asks for. Constructors that the compiler writes have no target attribute.
  set(KDA_CPU_FLAGS -march=armv8-a+crypto)
endif()

# kda_sources(OUT folder): the folder's own .cc files; new ones are picked up by the next build.
function(kda_sources out folder)
  file(GLOB found CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/${folder}/*.cc")
  set(${out} ${found} PARENT_SCOPE)
endfunction()

function(kda_common target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES
    CXX_EXTENSIONS OFF
    CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON
    POSITION_INDEPENDENT_CODE ON)
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/src")
  target_compile_options(${target} PRIVATE -ffp-contract=off -Wall -Wextra
    $<$<BOOL:${KDA_WERROR}>:-Werror>)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    # g++ 12 sees overlaps in every `"x" + std::string` (its bug 105329).
    target_compile_options(${target} PRIVATE -Wno-restrict)
  elseif(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    # libstdc++ 12's stable_sort calls what it deprecates; g++ still shows where we do.
    target_compile_options(${target} PRIVATE -Wno-deprecated-declarations)
  endif()
  if(KDA_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${KDA_SANITIZE}
      -fno-sanitize-recover=all -fno-omit-frame-pointer)
    # PUBLIC: whoever links an instrumented library needs the runtime.
    target_link_options(${target} PUBLIC -fsanitize=${KDA_SANITIZE})
  endif()
endfunction()

function(kda_library target)
  add_library(${target} ${ARGN})
  kda_common(${target})
endfunction()

# kda_c is libkda.so: the whole of the static library, of which only kda_* is seen.
function(kda_c_library)
  set(map "${PROJECT_SOURCE_DIR}/src/c_api/exports.map")
  add_library(kda_c SHARED "${map}")
  add_library(kda::c ALIAS kda_c)
  set_target_properties(kda_c PROPERTIES
    OUTPUT_NAME kda
    EXPORT_NAME c
    LINKER_LANGUAGE CXX
    LINK_DEPENDS "${map}"
    VERSION ${PROJECT_VERSION}
    SOVERSION ${PROJECT_VERSION_MAJOR})
  target_link_libraries(kda_c PRIVATE "$<LINK_LIBRARY:WHOLE_ARCHIVE,kda>")
  target_link_options(kda_c PRIVATE "LINKER:--version-script=${map}")
  if(NOT KDA_SANITIZE)  # a sanitizer's functions come with the program
    target_link_options(kda_c PRIVATE LINKER:--no-undefined)
  endif()
  target_include_directories(kda_c INTERFACE "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>")
endfunction()

function(kda_executable target)
  add_executable(${target} ${ARGN})
  kda_common(${target})
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/include")
  set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}")
endfunction()

# For code whose compile time matters more than its run time: -O3 doubles the one, and hardly
# changes the other.
function(kda_compile_fast target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
endfunction()

# Links those of the named targets that exist.
function(kda_link_present target)
  foreach(name IN LISTS ARGN)
    if(TARGET ${name})
      target_link_libraries(${target} PRIVATE ${name})
    endif()
  endforeach()
endfunction()

# The vector baseline, for kernel sources: Highway compiles them again for wider instruction sets.
function(kda_isa_flags)
  foreach(source IN LISTS ARGN)
    set_source_files_properties("${source}" PROPERTIES COMPILE_OPTIONS "${KDA_CPU_FLAGS}")
  endforeach()
endfunction()

# OUT is true where src/cuda is to be built.
function(kda_want_cuda out)
  set(${out} OFF PARENT_SCOPE)
  if(NOT EXISTS "${PROJECT_SOURCE_DIR}/src/cuda/CMakeLists.txt")
    if(KDA_WITH_CUDA STREQUAL "ON")
      message(FATAL_ERROR "KDA_WITH_CUDA is ON, but this version has no src/cuda")
    endif()
    return()
  endif()
  if(KDA_WITH_CUDA STREQUAL "AUTO")
    include(CheckLanguage)
    check_language(CUDA)
    if(CMAKE_CUDA_COMPILER)
      set(${out} ON PARENT_SCOPE)
    endif()
  elseif(KDA_WITH_CUDA)
    set(${out} ON PARENT_SCOPE)
  endif()
endfunction()
