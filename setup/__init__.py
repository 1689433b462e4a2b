"""`make setup` runs this package, after bootstrap.sh has chosen a Python: the stages in `__main__.py`.

It uses the standard library only.

wanted           the list of packages to install and build, from the pins
machine          checks of the machine before any work
packages         Debian packages
environment      .venv and its pinned packages
wheels           the wheel cache outside the clone
mxnet_wheel      changes to MXNet's wheel for newer releases of Python and NumPy
building         one wheel from its source, in an environment of its own
cuda             NVIDIA's wheels in place of a CUDA toolkit
horovod_build    Horovod's build, over MPI or NCCL
byteps_build     BytePS's build, over the host runtime or CUDA
operators_build  the build of the fused operators
check_horovod    a trial of Horovod
check_libraries  where processes load CUDA's libraries from
check_byteps     a trial of BytePS: workers, server, scheduler
progress         stages, signs of life, the log
errors           the exception that ends the set-up
"""
