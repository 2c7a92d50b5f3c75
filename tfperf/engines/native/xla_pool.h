// Threads among which operations divide their work.
#pragma once

namespace Eigen {
struct ThreadPoolDevice;
}

struct Pool;

Pool* new_pool(int threads);
const Eigen::ThreadPoolDevice* device_of(const Pool* pool);
void delete_pool(Pool* pool);
