# install.cmake: libskv, its headers, the CMake package skv (target skv::skv) and skv.pc.
include(CMakePackageConfigHelpers)

# What is installed as skv::skv: the static library itself, or a shared one made of its objects, in
# which only SKV_API symbols are visible.
set(skv_installed skv)
if(BUILD_SHARED_LIBS)
  add_library(skv_shared SHARED $<TARGET_OBJECTS:skv>)
  set_target_properties(skv_shared PROPERTIES
    OUTPUT_NAME skv EXPORT_NAME skv VERSION ${PROJECT_VERSION}
    SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR} # 0.x: each minor is its own ABI
    LINK_OPTIONS "LINKER:--no-undefined")
  target_link_libraries(skv_shared PRIVATE PkgConfig::XXHASH OpenMP::OpenMP_C Threads::Threads m)
  if(SKV_HAVE_CUDA)
    target_sources(skv_shared PRIVATE $<TARGET_OBJECTS:skv_cuda> $<TARGET_OBJECTS:skv_cuda_hopper>)
    target_link_libraries(skv_shared PRIVATE CUDA::cudart_static)
    target_link_options(skv_shared PRIVATE LINKER:--exclude-libs,libcudart_static.a)
  endif()
  if(MPI_C_FOUND)
    target_link_libraries(skv_shared PUBLIC MPI::MPI_C)
  endif()
  if(SKV_HAVE_NCCL)
    target_link_libraries(skv_shared PRIVATE NCCL::NCCL)
  endif()
  set(skv_installed skv_shared)
endif()
target_include_directories(${skv_installed} INTERFACE
  $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
# In C++, mpi.h may otherwise bring the C++ bindings that MPI-3 removed, and ask for their library.
set(skv_mpi_definitions "")
if(MPI_C_FOUND)
  set(skv_mpi_definitions OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
  target_compile_definitions(${skv_installed} INTERFACE ${skv_mpi_definitions})
endif()

install(TARGETS ${skv_installed} EXPORT skvTargets)
install(FILES src/skv.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
if(MPI_C_FOUND)
  install(FILES src/skv_mpi.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
endif()

set(skv_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/skv)
install(EXPORT skvTargets NAMESPACE skv:: DESTINATION ${skv_cmake_dir})
configure_package_config_file(cmake/skvConfig.cmake.in ${PROJECT_BINARY_DIR}/skvConfig.cmake
  INSTALL_DESTINATION ${skv_cmake_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/skvConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/skvConfig.cmake ${PROJECT_BINARY_DIR}/skvConfigVersion.cmake
  DESTINATION ${skv_cmake_dir})
if(SKV_HAVE_NCCL)
  install(FILES src/skv_nccl.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(FILES cmake/FindNCCL.cmake DESTINATION ${skv_cmake_dir})
endif()

# skv.pc: a static library needs its own dependencies at every link, a shared one at none.
set(skv_pc_libs "${OpenMP_C_FLAGS} -lxxhash -lm")
if(SKV_HAVE_CUDA)
  string(APPEND skv_pc_libs " ${CUDA_cudart_static_LIBRARY} -ldl -lrt -lpthread")
endif()
if(SKV_HAVE_NCCL)
  string(APPEND skv_pc_libs " ${NCCL_LIBRARY}")
endif()
set(skv_pc_cflags "")
foreach(definition IN LISTS skv_mpi_definitions)
  string(APPEND skv_pc_cflags " -D${definition}")
endforeach()
foreach(directory IN LISTS MPI_C_INCLUDE_DIRS)
  string(APPEND skv_pc_cflags " -I${directory}")
endforeach()
foreach(library IN LISTS MPI_C_LIBRARIES)
  string(APPEND skv_pc_libs " ${library}")
endforeach()
set(skv_pc_libs_private "")
if(BUILD_SHARED_LIBS)
  set(skv_pc_libs_private ${skv_pc_libs})
  set(skv_pc_libs "")
endif()
file(RELATIVE_PATH skv_pc_prefix ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(cmake/skv.pc.in ${PROJECT_BINARY_DIR}/skv.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/skv.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
