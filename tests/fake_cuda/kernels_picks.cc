#include "engine/cuda/kernels/picks.cu"
