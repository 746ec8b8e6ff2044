/* A number that stands for bytes, of a piece of them. Included once for each width of vectors; the number is the same.
 *
 * Bytes are read as words, LANES side by side. Each word is added to one sum of its lane, so that no change of a single
 * word is lost, and its halves, after a key of its place, are multiplied and added to another, which the order of words
 * and changes of several of them reach. Between blocks both sums are mixed, by steps that can be undone. Not for bytes
 * that somebody chose in order to deceive.
 */

/* Of at most PIECE bytes; the last block is filled with zeros. */
static uint64_t NAME(piece)(const unsigned char *from, int64_t size, uint64_t number, const uint64_t *key)
{
    uint64_t sum[LANES], product[LANES], all = number;
    for (int i = 0; i < LANES; i++)
        sum[i] = product[i] = key[i] ^ number;
    for (; size > 0; from += BLOCK, size -= BLOCK) {
        unsigned char last[BLOCK];
        const unsigned char *block = from;
        if (size < BLOCK) {
            memset(last, 0, BLOCK);
            memcpy(last, from, size);
            block = last;
        }
        for (int stripe = 0; stripe < STRIPES; stripe++)
            for (int i = 0; i < LANES; i++) {
                uint64_t word, keyed;
                memcpy(&word, block + 8 * (stripe * LANES + i), 8);
                keyed = word ^ key[stripe * LANES + i];
                sum[i] += word;
                product[i] += (keyed & 0xffffffffu) * (keyed >> 32);
            }
        for (int i = 0; i < LANES; i++) {
            sum[i] = (sum[i] ^ sum[i] >> 47) * 0x9e3779b97f4a7c15u;
            product[i] = (product[i] ^ product[i] >> 47) * 0xbf58476d1ce4e5b9u;
        }
    }
    for (int i = 0; i < LANES; i++)
        all = mixed(mixed(all ^ sum[i]) ^ product[i]);
    return all;
}
