#include "engine/cuda/axes.cu"
