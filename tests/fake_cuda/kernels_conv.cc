#include "engine/cuda/conv.cu"
