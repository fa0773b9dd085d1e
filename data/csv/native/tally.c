// Values into histograms and sums by group; data/tables/tally.py says how their buckets are cut.

#include <stdint.h>
#include <string.h>

// As in tally.py.
enum { COUNT, TOTAL, LEAST, GREATEST, PIVOT, OFFSET, SQUARE, NUM_SUMS };

// Add values to the rows of their groups; the bucket of a value is its bits, shifted, counted from `first`.
void add_values(int64_t num_values, const int64_t *groups, const double *values, int64_t *histogram,
		int64_t num_buckets, double *sums, int64_t shift, int64_t first)
{
	for (int64_t index = 0; index < num_values; index++) {
		double *own = sums + NUM_SUMS * groups[index];
		double value = values[index], offset;
		int64_t bucket;

		memcpy(&bucket, &value, sizeof bucket);
		bucket = (bucket >> shift) - first;
		bucket = bucket < 0 ? 0 : bucket < num_buckets ? bucket : num_buckets - 1;
		histogram[groups[index] * num_buckets + bucket]++;
		if (own[COUNT] == 0)
			own[PIVOT] = value;
		offset = value - own[PIVOT];
		own[COUNT] += 1;
		own[TOTAL] += value;
		own[OFFSET] += offset;
		own[SQUARE] += offset * offset;
		own[LEAST] = value < own[LEAST] ? value : own[LEAST];
		own[GREATEST] = value > own[GREATEST] ? value : own[GREATEST];
	}
}
