# How kernels are compiled. nvcc is called by rules of our own: CMake 3.25 knows no C++20 for CUDA, and
# would put the host's warning flags on kernels. The runtime is linked statically.
find_package(CUDAToolkit REQUIRED)

set(KDA_CUDA_CAPABILITIES 80 90 100 120 CACHE STRING
  "Compute capabilities to compile for; PTX of the first goes along for all that come later")
foreach(capability IN LISTS KDA_CUDA_CAPABILITIES)
  set(code sm_${capability})
  if(NOT kda_everywhere)
    set(code [${code},compute_${capability}])
  endif()
  list(APPEND kda_everywhere -gencode arch=compute_${capability},code=${code})
endforeach()

# kda_kernels(TARGET *.cu ...): adds kernels to a library. Those in folders sm90 and mma are for sm_90a
# (wgmma, setmaxnreg), all others for every GPU from compute capability 8.0 on: code for 8.x, 9.x,
# 10.x and 12.x, and PTX for what comes. Objects and what ptxas says of them (FOLDER_NAME.o.log, for
# tools/registers.sh) lie in the current binary folder.
function(kda_kernels target)
  foreach(kernel IN LISTS ARGN)
    get_filename_component(stem "${kernel}" NAME_WE)
    get_filename_component(folder "${kernel}" DIRECTORY)
    get_filename_component(folder "${folder}" NAME)
    set(object "${CMAKE_CURRENT_BINARY_DIR}/${folder}_${stem}.o")
    set(devices ${kda_everywhere})
    if(folder MATCHES "^(sm90|mma)$")
      set(devices -gencode arch=compute_90a,code=sm_90a)
    endif()
    add_custom_command(
      OUTPUT "${object}"
      COMMAND "${PROJECT_SOURCE_DIR}/cmake/nvcc.sh" "${object}.log" "${CUDAToolkit_NVCC_EXECUTABLE}"
        -std=c++20 -O3 -Xptxas -v -Xcompiler -fPIC
        -I "${PROJECT_SOURCE_DIR}/src" -I "${PROJECT_SOURCE_DIR}/include"
        ${devices} -MD -MF "${object}.d" -c "${kernel}" -o "${object}"
      DEPENDS "${kernel}" "${PROJECT_SOURCE_DIR}/cmake/nvcc.sh"
      DEPFILE "${object}.d"
      COMMENT "Compiling ${folder}/${stem}.cu"
      VERBATIM)
    list(APPEND objects "${object}")
  endforeach()
  set_source_files_properties(${objects} TARGET_DIRECTORY ${target} PROPERTIES
    EXTERNAL_OBJECT TRUE GENERATED TRUE)
  target_sources(${target} PRIVATE ${objects})
  add_custom_target(${target}_kernels DEPENDS ${objects})
  add_dependencies(${target} ${target}_kernels)
endfunction()
