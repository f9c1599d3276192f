# Files that a program carries inside itself, as C++ string literals.
#
# kda_assets(target header NAME=FILE ...): `header`, to be included by the target's sources, defines
# `inline constexpr std::string_view NAME` for each file; a file that is absent gives "".
function(kda_assets target header)
  set(text "// Made by CMake from the files that it names.\n#pragma once\n\n#include <string_view>\n")
  foreach(asset IN LISTS ARGN)
    string(REGEX MATCH "^([^=]+)=(.*)$" found "${asset}")
    set(name "${CMAKE_MATCH_1}")
    set(file "${CMAKE_MATCH_2}")
    set(content "")
    if(EXISTS "${file}")
      file(READ "${file}" content)
      set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${file}")
    endif()
    string(APPEND text "\n// ${file}\n"
      "inline constexpr std::string_view ${name} = R\"KDA_ASSET(${content})KDA_ASSET\";\n")
  endforeach()
  set(folder "${PROJECT_BINARY_DIR}/generated")
  file(CONFIGURE OUTPUT "${folder}/${header}" CONTENT "@text@" @ONLY)
  if(TARGET ${target})
    target_include_directories(${target} PRIVATE "${folder}")
  endif()
endfunction()

# OUT is Chart.js 3, for the charts of `kda report`; without it they are tables.
function(kda_find_chart_js out)
  set(folders)
  foreach(prefix IN LISTS CMAKE_PREFIX_PATH ITEMS /usr /usr/local)
    list(APPEND folders "${prefix}/share/javascript/chart.js")
  endforeach()
  find_file(KDA_CHART_JS chart.min.js PATHS ${folders} NO_DEFAULT_PATH
            DOC "Chart.js 3 (Debian: libjs-chart.js)")
  set(found "${KDA_CHART_JS}")
  if(NOT found)
    message(STATUS "No Chart.js (Debian: libjs-chart.js): charts of `kda report` will be tables")
    set(found "")
  endif()
  set(${out} "${found}" PARENT_SCOPE)
endfunction()

# kda_embed(source macro file): `source` finds the absolute path of `file` in the string `macro`, to
# .incbin it, and is compiled again when the file changes.
function(kda_embed source macro file)
  set_source_files_properties("${source}" PROPERTIES
    COMPILE_DEFINITIONS "${macro}=\"${PROJECT_SOURCE_DIR}/${file}\""
    OBJECT_DEPENDS "${PROJECT_SOURCE_DIR}/${file}")
endfunction()
