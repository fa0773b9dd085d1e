// Packets of a forwarding file: names as numbers, whether rows need a closer look, and sums by slice; data/studies/mishra/tables.py,
// data/studies/mishra/checks.py and data/studies/mishra/figures.py say of what.

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

// As in mishra_checks.py.
enum { ODD = 1, UNORDERED = 2, LEAST_BYTES = 1, MOST_BYTES = 65549 };
static const double ROUNDED_US = 1.0, ROUNDED_RATIO = 1e-5;

// Mark the codes that occur.
void mark_codes(int64_t num_rows, const int32_t *codes, uint8_t *occurs)
{
	for (int64_t row = 0; row < num_rows; row++)
		occurs[codes[row]] = 1;
}

// The number that each row's code stands for.
void number_codes(int64_t num_rows, const int32_t *codes, const int64_t *numbers, int64_t *found)
{
	for (int64_t row = 0; row < num_rows; row++)
		found[row] = numbers[codes[row]];
}

// Whether any of the rows is ODD or UNORDERED; latest_ns is when the latest one before them left.
int64_t inspect_packets(int64_t num_rows, const double *delay_us, const int32_t *packet_bytes,
			const int64_t *received_ns, const int64_t *sent_ns, int64_t latest_ns)
{
	bool fine = true;
	int64_t found = 0, tied = 0;

	for (int64_t row = 0; row < num_rows; row++) {
		double passed_us = (double)(sent_ns[row] - received_ns[row]) / 1e3;

		fine &= fabs(delay_us[row] - passed_us) <= ROUNDED_US + ROUNDED_RATIO * passed_us;
		fine &= (delay_us[row] >= 0) & (received_ns[row] >= 0) & (sent_ns[row] >= 0);
		fine &= (packet_bytes[row] >= LEAST_BYTES) & (packet_bytes[row] <= MOST_BYTES);
	}
	for (int64_t row = 0; row < num_rows; row++) {
		// Two packets may leave in the same nanosecond.
		tied = sent_ns[row] == latest_ns ? tied + 1 : 0;
		if (sent_ns[row] < latest_ns || tied > 1 ||
		    (tied && (row == 0 || received_ns[row] == received_ns[row - 1])))
			found = UNORDERED;
		latest_ns = sent_ns[row];
	}
	return fine ? found : found | ODD;
}

// Add packets to the totals of their slices, three each: bytes, when the first came, when the last left.
void add_packets(int64_t num_rows, const int64_t *slices, const int32_t *packet_bytes, const int64_t *received_ns,
		 const int64_t *sent_ns, int64_t *totals)
{
	for (int64_t row = 0; row < num_rows; row++) {
		int64_t *own = totals + 3 * slices[row];

		own[0] += packet_bytes[row];
		own[1] = received_ns[row] < own[1] ? received_ns[row] : own[1];
		own[2] = sent_ns[row] > own[2] ? sent_ns[row] : own[2];
	}
}
