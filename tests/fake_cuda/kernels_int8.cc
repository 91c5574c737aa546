#include "engine/cuda/int8.cu"
