/* Any bytes as a .npz file: open it and take every member out. */
// flavours: test: asan
#include "../../bags.h"
#include "../../formats/formats.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    bags_view file = {data, size}, member;
    bags_buffer scratch = {0};
    bags_npz *npz = bags_npz_open(file, NULL);
    for (size_t i = 0; npz && i < bags_npz_length(npz) && i < 16; i++) {
        bags_npz_name(npz, i);
        bags_npz_read(npz, i, 1 << 20, &scratch, &member, NULL);
    }
    bags_npz_close(npz);
    bags_buffer_free(&scratch);
    return 0;
}
