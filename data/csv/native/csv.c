// Plain CSV rows to columns; what counts as plain, and who calls this: data/csv/kernel.py.

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "digits are taken eight at a time, the first of them in the lowest byte"
#endif

enum kind { INTEGER, SHORT_INTEGER, DECIMAL, WORD };

// As in csv_kernel.py.
enum { TOO_MANY = -1, MAX_WORDS = 256, SLOTS = 1024, MAX_ODD = 1024 };

// A different word of a column: its first eight bytes or a hash, and where it stands for the first time.
struct word {
	uint64_t key;
	int64_t start, length;
};

// A line that is not plain: its number in the block, and where it begins and ends.
struct odd {
	int64_t number, start, end;
};

#define BYTES(byte) (0x0101010101010101u * (uint8_t)(byte))

static const double POWERS[] = {1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15};
static const uint64_t SMALL_POWERS[] = {1, 10, 100, 1000, 10000, 100000, 1000000, 10000000};

// The eight bytes from a place on; zeros stand for those behind the end.
static inline uint64_t eight_bytes(const uint8_t *at, const uint8_t *end)
{
	uint64_t bytes = 0;

	if (end - at >= 8)
		memcpy(&bytes, at, 8);
	else
		memcpy(&bytes, at, (size_t)(end - at));
	return bytes;
}

// The highest bit of the lowest byte that is zero, and perhaps of others above it; 0 where none is.
// H. S. Warren, Hacker's Delight, 2nd ed. 2012, section 6-1.
static inline uint64_t zero_byte(uint64_t bytes)
{
	return (bytes - BYTES(0x01)) & ~bytes & BYTES(0x80);
}

// How many of eight bytes are digits, up to the first that is none.
static inline int leading_digits(uint64_t bytes)
{
	uint64_t values = bytes ^ BYTES('0');
	uint64_t others = ((values + BYTES(0x76)) | values) & BYTES(0x80);

	return others ? __builtin_ctzll(others) / 8 : 8;
}

// The number that eight digits are: neighbours are put together in pairs, fours and eights.
static inline uint64_t eight_digits(uint64_t bytes)
{
	bytes = ((bytes & BYTES(0x0f)) * (10 * (1 << 8) + 1)) >> 8;
	bytes = ((bytes & 0x00ff00ff00ff00ffu) * (100 * (1 << 16) + 1)) >> 16;
	return ((bytes & 0x0000ffff0000ffffu) * (10000 * ((uint64_t)1 << 32) + 1)) >> 32;
}

// Where digits end; the number that they append to overflows where they are too many.
static inline const uint8_t *digits(const uint8_t *at, const uint8_t *end, uint64_t *number)
{
	for (;;) {
		uint64_t bytes = eight_bytes(at, end);
		int count = leading_digits(bytes);

		if (count == 8) {
			*number = *number * 100000000 + eight_digits(bytes);
			at += 8;
			continue;
		}
		if (count > 0)
			*number = *number * SMALL_POWERS[count] + eight_digits(bytes << (64 - 8 * count));
		return at + count;
	}
}

// Where a word ends: at the delimiter, a line feed, or the carriage return before it.
static inline const uint8_t *word_end(const uint8_t *at, const uint8_t *end, uint8_t delimiter, uint64_t *key)
{
	const uint8_t *start = at;
	uint64_t bytes = eight_bytes(at, end);
	uint64_t stop = zero_byte(bytes ^ BYTES(delimiter)) | zero_byte(bytes ^ BYTES('\n')) | zero_byte(bytes ^ BYTES('\r'));

	if (stop) {
		int length = __builtin_ctzll(stop) / 8;

		*key = length ? bytes << (64 - 8 * length) : 0;
		return start + length;
	}
	*key = bytes;
	for (at += 8; *at != delimiter && *at != '\n' && *at != '\r'; at++)
		*key = (*key ^ *at) * 1099511628211u; // as in FNV-1a
	return at;
}

// The number of a word among those of its column, which it may be added to; -1 where it is not plain, -2 where there are
// too many.
static inline int32_t word_number(const uint8_t *text, const uint8_t *start, const uint8_t *end, uint64_t key,
				  struct word *words, int64_t *num_words, int16_t *slots)
{
	int64_t length = end - start;
	uint64_t slot = (key * 0x9e3779b97f4a7c15u) >> 54; // Fibonacci hashing to one of SLOTS

	for (; slots[slot] >= 0; slot = (slot + 1) % SLOTS) {
		const struct word *known = &words[slots[slot]];

		if (known->key == key && known->length == length &&
		    (length <= 8 || memcmp(text + known->start, start, (size_t)length) == 0))
			return slots[slot];
	}
	for (const uint8_t *at = start; at < end; at++)
		if (*at == '"' || *at > 127)
			return -1;
	if (*num_words == MAX_WORDS)
		return -2;
	words[*num_words] = (struct word){key, start - text, length};
	slots[slot] = (int16_t)*num_words;
	return (int32_t)(*num_words)++;
}

/*
 * Parse a block.
 *
 * text: whole lines of `size` bytes in all; the last one is a line feed, at which every loop over a field stops.
 * kinds: of the columns, `num_columns` of them.
 * columns: filled; `stride` bytes from column to column. Integers and decimals take 8 bytes, short integers and numbers
 *          of words 4. There is room for a value more than the block can have rows: a number takes two bytes of text at
 *          least, with what ends it, and a word one.
 * words: filled, MAX_WORDS a column; num_words: zeros, filled; slots: -1, SLOTS a column.
 * odd_lines: filled, MAX_ODD; num_rows: filled.
 *
 * Returns the number of odd lines, or TOO_MANY where there are too many of these or of words.
 */
int64_t parse_plain(const uint8_t *text, int64_t size, uint8_t delimiter, const int64_t *kinds, int64_t num_columns,
		    uint8_t *columns, int64_t stride, struct word *words, int64_t *num_words, int16_t *slots,
		    struct odd *odd_lines, int64_t *num_rows)
{
	const uint8_t *at = text, *end = text + size;
	int64_t row = 0, num_odd = 0;

	while (at < end) {
		const uint8_t *line = at;
		bool plain = true;

		for (int64_t column = 0; column < num_columns; column++) {
			uint8_t *values = columns + column * stride;
			bool last = column == num_columns - 1;

			if (kinds[column] == WORD) {
				const uint8_t *start = at;
				uint64_t key;
				int32_t number;

				at = word_end(at, end, delimiter, &key);
				number = word_number(text, start, at, key, words + column * MAX_WORDS, &num_words[column],
						     slots + column * SLOTS);
				if (number == -2)
					return TOO_MANY;
				plain = number >= 0;
				((int32_t *)values)[row] = number;
			} else {
				bool negative = *at == '-';
				const uint8_t *first = at + negative;
				uint64_t number = 0;
				int64_t before, behind = 0;

				at = digits(first, end, &number);
				before = at - first;
				plain = before > 0;
				if (kinds[column] == DECIMAL) {
					if (*at == '.') {
						first = at + 1;
						at = digits(first, end, &number);
						behind = at - first;
						plain &= behind > 0;
					}
					plain &= before + behind <= 15;
					// Both are exact, so their quotient is the nearest double (W. D. Clinger, PLDI 1990).
					double value = (double)(int64_t)number / POWERS[plain ? behind : 0];

					((double *)values)[row] = negative ? -value : value;
				} else {
					int64_t value = (int64_t)(negative ? 0 - number : number);

					plain &= before <= 19 && number <= INT64_MAX;
					if (kinds[column] == SHORT_INTEGER) {
						plain &= number <= INT32_MAX;
						((int32_t *)values)[row] = (int32_t)value;
					} else {
						((int64_t *)values)[row] = value;
					}
				}
			}
			if (last && *at == '\r' && at + 1 < end)
				at++;
			if (!plain || *at != (last ? '\n' : delimiter)) {
				plain = false;
				break;
			}
			at++;
		}
		if (plain) {
			row++;
			continue;
		}
		if (num_odd == MAX_ODD)
			return TOO_MANY;
		at = memchr(at, '\n', (size_t)(end - at));
		odd_lines[num_odd] = (struct odd){row + num_odd, line - text, at - text};
		num_odd++;
		at++;
	}
	*num_rows = row;
	return num_odd;
}
