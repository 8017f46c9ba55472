# dependencies.cmake: what the project is built with. All that is missing is reported at once, with
# the names of the distribution's packages.
include(CheckIncludeFile)
include(CheckLanguage)

set(skv_missing "")

# skv_find(<PREFIX> <pkg-config module>): PkgConfig::<PREFIX> exists afterwards if the module does.
# Where packages were unpacked under another prefix, the folders that their .pc files name do not
# exist; CPATH and LIBRARY_PATH then lead to the files.
macro(skv_find prefix module)
  pkg_check_modules(${prefix} QUIET IMPORTED_TARGET ${module})
  if(${prefix}_FOUND)
    set(skv_folders "")
    foreach(folder IN LISTS ${prefix}_INCLUDE_DIRS)
      if(EXISTS ${folder})
        list(APPEND skv_folders ${folder})
      endif()
    endforeach()
    set_target_properties(PkgConfig::${prefix} PROPERTIES
      INTERFACE_INCLUDE_DIRECTORIES "${skv_folders}")
  endif()
endmacro()

macro(skv_require prefix module package)
  skv_find(${prefix} ${module})
  if(NOT ${prefix}_FOUND)
    list(APPEND skv_missing ${package})
  endif()
endmacro()

find_package(PkgConfig)
if(NOT PkgConfig_FOUND)
  message(FATAL_ERROR "pkg-config is missing: install the package pkg-config, or run ./launch/setup")
endif()

skv_require(HWLOC hwloc libhwloc-dev)
skv_require(CJSON libcjson libcjson-dev)
skv_require(XXHASH libxxhash libxxhash-dev)
skv_require(POPT popt libpopt-dev)

find_path(RANDOM123_INCLUDE_DIR Random123/philox.h)
if(NOT RANDOM123_INCLUDE_DIR)
  list(APPEND skv_missing librandom123-dev)
endif()

find_package(OpenMP QUIET COMPONENTS C)
if(NOT OpenMP_C_FOUND)
  if(CMAKE_C_COMPILER_ID MATCHES "Clang")
    list(APPEND skv_missing libomp-dev)
  else()
    list(APPEND skv_missing libgomp1)
  endif()
endif()
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)

if(skv_missing)
  list(JOIN skv_missing " " skv_missing)
  message(FATAL_ERROR "Not found: ${skv_missing}\n"
    "Run ./launch/setup, or: sudo apt-get install ${skv_missing}\n"
    "(Installed elsewhere? Set PKG_CONFIG_PATH and CMAKE_PREFIX_PATH.)")
endif()

# Optional parts: each says what is lost without it.
find_package(MPI QUIET COMPONENTS C)
if(MPI_C_FOUND)
  message(STATUS "MPI: ${MPI_C_LIBRARIES}")
else()
  message(STATUS "MPI: not found, so one rank only (package libopenmpi-dev, or set MPI_C_COMPILER)")
endif()

skv_find(CRITERION criterion)
if(NOT CRITERION_FOUND)
  message(STATUS "Criterion: not found, so no tests are built (package libcriterion-dev)")
endif()

set(SKV_CUDA AUTO CACHE STRING "GPU kernels: AUTO (where nvcc is), ON or OFF")
set_property(CACHE SKV_CUDA PROPERTY STRINGS AUTO ON OFF)
set(SKV_HAVE_CUDA FALSE)
if(NOT SKV_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "SKV_CUDA is AUTO, ON or OFF, not '${SKV_CUDA}'")
elseif(NOT SKV_CUDA STREQUAL "OFF")
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_ARCHITECTURES 80 90a-real) # where a target says nothing else
    enable_language(CUDA)
    find_package(CUDAToolkit 12.4 QUIET)
    set(SKV_HAVE_CUDA ${CUDAToolkit_FOUND})
  endif()
  if(SKV_HAVE_CUDA)
    message(STATUS "CUDA: ${CMAKE_CUDA_COMPILER} ${CUDAToolkit_VERSION}")
  elseif(SKV_CUDA STREQUAL "ON")
    message(FATAL_ERROR "SKV_CUDA=ON, but nvcc 12.4 or later was not found: set CUDACXX")
  else()
    message(STATUS "CUDA: no nvcc of 12.4 or later, so no GPU kernels (set CUDACXX)")
  endif()
endif()

# 2.14 has communicators that do not block. The transport starts from MPI.
set(SKV_HAVE_NCCL FALSE)
if(SKV_HAVE_CUDA AND MPI_C_FOUND)
  list(APPEND CMAKE_MODULE_PATH ${CMAKE_CURRENT_LIST_DIR})
  find_package(NCCL 2.14 QUIET)
  set(SKV_HAVE_NCCL ${NCCL_FOUND})
  if(SKV_HAVE_NCCL)
    message(STATUS "NCCL: ${NCCL_LIBRARY} ${NCCL_VERSION}")
  else()
    message(STATUS "NCCL: no 2.14 or later, so ranks with GPUs go through MPI (package libnccl-dev, or set NCCL_ROOT)")
  endif()
endif()
set(SKV_BUILDS_CUDA ${SKV_HAVE_CUDA} CACHE INTERNAL "Whether this build has GPU kernels")
