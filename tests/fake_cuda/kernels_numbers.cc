#include "engine/cuda/numbers.cu"
