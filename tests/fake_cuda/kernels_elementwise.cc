#include "engine/cuda/elementwise.cu"
