# cmake --install: libraries, headers, the program, find_package(kda) and pkg-config. The component
# `bundle`, installed only when it is named, adds the shared libraries that the program and libkda.so
# need, so that the tree runs where they are not (tools/dist.sh).
include(CMakePackageConfigHelpers)

set(package "${CMAKE_INSTALL_LIBDIR}/cmake/kda")
set(made "${PROJECT_BINARY_DIR}/install")

install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/kda" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")

set_target_properties(kda_audit PROPERTIES EXPORT_NAME audit)
install(TARGETS kda kda_audit EXPORT kda-cpp
  ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}"
  INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(EXPORT kda-cpp NAMESPACE kda:: DESTINATION "${package}")

if(TARGET kda_c)
  install(TARGETS kda_c EXPORT kda-c
    LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
    INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
  install(EXPORT kda-c NAMESPACE kda:: DESTINATION "${package}")
endif()

if(TARGET kda_cli)
  install(TARGETS kda_cli RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
endif()

# The tree may be moved: what lies in its lib folder is found from where the file lies.
file(RELATIVE_PATH lib_from_bin "/${CMAKE_INSTALL_BINDIR}" "/${CMAKE_INSTALL_LIBDIR}")
foreach(target IN ITEMS kda_cli kda_c)
  if(TARGET ${target})
    set(from_here "$<IF:$<STREQUAL:${target},kda_cli>,/${lib_from_bin},>")
    set_target_properties(${target} PROPERTIES
      BUILD_RPATH "$ORIGIN"
      INSTALL_RPATH "$ORIGIN${from_here}")
  endif()
endforeach()

# --- for find_package and pkg-config -------------------------------------------------------------
set(libraries hwy::hwy)
set(pc_requires "libhwy")
set(pc_libs "-pthread")
if(KDA_WITH_TBB)
  list(APPEND libraries TBB::tbb)
  string(APPEND pc_requires ", tbb")
endif()
if(with_cuda)
  find_package(CUDAToolkit REQUIRED)
  string(APPEND pc_libs " -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -lrt -ldl")
endif()

configure_package_config_file(cmake/kda-config.cmake.in "${made}/kda-config.cmake"
  INSTALL_DESTINATION "${package}")
write_basic_package_version_file("${made}/kda-config-version.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES "${made}/kda-config.cmake" "${made}/kda-config-version.cmake"
  DESTINATION "${package}")

set(pc_folder "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
file(RELATIVE_PATH pc_prefix "/${pc_folder}" "/")
set(pcs kda-cpp)
if(TARGET kda_c)
  list(APPEND pcs kda)
endif()
foreach(pc IN LISTS pcs)
  configure_file(cmake/${pc}.pc.in "${made}/${pc}.pc" @ONLY)
  install(FILES "${made}/${pc}.pc" DESTINATION "${pc_folder}")
endforeach()

# --- the bundle ------------------------------------------------------------------------------------
foreach(library IN LISTS libraries)
  get_target_property(type ${library} TYPE)
  if(type STREQUAL "SHARED_LIBRARY")
    install(IMPORTED_RUNTIME_ARTIFACTS ${library}
      LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT bundle EXCLUDE_FROM_ALL)
  endif()
endforeach()
