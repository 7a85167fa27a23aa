/*
 * mp4_cache.c - a cache of recently used videos of datasets, with their indexes in
 * bounded memory. A few of them keep their decoders, and reading continues from the
 * decoder's position. This file calls only public functions of mp4.c.
 *
 *     entries     unordered; found by a hash of dataset, datapoint, field and item
 *     used        the number of the last call that used an entry: the smallest is
 *                 dropped
 */
#include "codecs.h"

#include <string.h>

#define VIDEO_CACHE_SIZE ((size_t)64 << 20)
#define VIDEO_CACHE_DECODERS 16
#define VIDEO_CACHE_BUCKETS 1024

typedef struct video_cache_entry {
    const bags_reader *dataset;
    uint64_t index, item;
    size_t field;
    bags_mp4_reader *video;
    uint64_t used;
    size_t size;
    bool decodes; /* may have a decoder */
    size_t next;  /* next entry in the bucket, from 1; 0: none */
} video_cache_entry;

struct bags_mp4_cache {
    bags_buffer memory; /* holds the cache itself; see format_state */
    bags_mp4_cache_options options;
    bags_buffer entries;
    size_t count, size, decoders;
    uint64_t calls;
    size_t buckets[VIDEO_CACHE_BUCKETS]; /* first entry of each bucket, from 1 */
};

bags_mp4_cache *bags_mp4_cache_open(
    const bags_mp4_cache_options *options, bags_error *err) {
    bags_mp4_cache *cache = (bags_mp4_cache *)format_state(NULL, sizeof *cache, err);
    if (!cache)
        return NULL;
    if (options)
        cache->options = *options;
    if (!cache->options.max_size)
        cache->options.max_size = VIDEO_CACHE_SIZE;
    if (!cache->options.decoders)
        cache->options.decoders = VIDEO_CACHE_DECODERS;
    return cache;
}

static video_cache_entry *video_cache_entries(const bags_mp4_cache *cache) {
    return (video_cache_entry *)(void *)cache->entries.data;
}

void bags_mp4_cache_close(bags_mp4_cache *cache) {
    if (!cache)
        return;
    for (size_t i = 0; i < cache->count; i++)
        bags_mp4_reader_close(video_cache_entries(cache)[i].video);
    bags_buffer_free(&cache->entries);
    format_state_close(cache);
}

static size_t *video_cache_bucket(bags_mp4_cache *cache, const video_cache_entry *key) {
    uint64_t hash = (uint64_t)(uintptr_t)key->dataset ^
                    key->index * 0x9E3779B97F4A7C15u ^
                    key->field * 0xC2B2AE3D27D4EB4Fu ^ key->item * 0x165667B19E3779F9u;
    return &cache->buckets[(hash ^ hash >> 29 ^ hash >> 47) % VIDEO_CACHE_BUCKETS];
}

/* Find the link to this entry, or the 0 that ends its bucket. */
static size_t *video_cache_link(bags_mp4_cache *cache, const video_cache_entry *key) {
    video_cache_entry *entries = video_cache_entries(cache);
    size_t *link = video_cache_bucket(cache, key);
    while (*link) {
        video_cache_entry *entry = &entries[*link - 1];
        if (entry->dataset == key->dataset && entry->index == key->index &&
            entry->field == key->field && entry->item == key->item)
            break;
        link = &entry->next;
    }
    return link;
}

/* The least recently used entry, or if requested, the least recently used with a
 * decoder. */
static video_cache_entry *video_cache_oldest(
    const bags_mp4_cache *cache, bool decodes) {
    video_cache_entry *entries = video_cache_entries(cache), *oldest = NULL;
    for (size_t i = 0; i < cache->count; i++)
        if ((entries[i].decodes || !decodes) &&
            (!oldest || entries[i].used < oldest->used))
            oldest = &entries[i];
    return oldest;
}

static void video_cache_idle(bags_mp4_cache *cache, video_cache_entry *entry) {
    bags_mp4_reader_idle(entry->video);
    cache->decoders -= entry->decodes;
    entry->decodes = false;
}

/* Drop an entry, and move the last entry into its slot. */
static void video_cache_drop(bags_mp4_cache *cache, video_cache_entry *entry) {
    video_cache_entry *last = &video_cache_entries(cache)[cache->count - 1];
    cache->size -= entry->size;
    video_cache_idle(cache, entry);
    bags_mp4_reader_close(entry->video);
    *video_cache_link(cache, entry) = entry->next;
    if (last != entry) {
        *video_cache_link(cache, last) =
            (size_t)(entry - video_cache_entries(cache)) + 1;
        *entry = *last;
    }
    cache->count--;
}

/* Open a video, and make room for it. */
static bags_code video_cache_add(
    bags_mp4_cache *cache, video_cache_entry *key, bags_error *err) {
    key->video = bags_mp4_reader_open_blob(
        key->dataset, key->index, key->field, key->item, &cache->options.video, err);
    if (!key->video)
        return BAGS_ERROR_STATE; /* the code itself is in err */
    key->size = bags_mp4_reader_memory(key->video);
    while (cache->count > 0 && (key->size > cache->options.max_size ||
                                   cache->size > cache->options.max_size - key->size))
        video_cache_drop(cache, video_cache_oldest(cache, false));
    bags_code code = bags_buffer_reserve(
        &cache->entries, (cache->count + 1) * sizeof(video_cache_entry), err);
    if (code) {
        bags_mp4_reader_close(key->video);
        return code;
    }
    *video_cache_link(cache, key) = cache->count + 1;
    video_cache_entries(cache)[cache->count++] = *key;
    cache->size += key->size;
    return BAGS_OK;
}

bags_mp4_reader *bags_mp4_cache_get(bags_mp4_cache *cache, const bags_reader *dataset,
    uint64_t index, size_t field, uint64_t item, bags_error *err) {
    video_cache_entry key;
    memset(&key, 0, sizeof key);
    key.dataset = dataset;
    key.index = index;
    key.field = field;
    key.item = item;
    if (!*video_cache_link(cache, &key) && video_cache_add(cache, &key, err))
        return NULL;
    video_cache_entry *entry =
        &video_cache_entries(cache)[*video_cache_link(cache, &key) - 1];
    entry->used = ++cache->calls;
    if (!entry->decodes) {
        if (cache->decoders >= cache->options.decoders)
            video_cache_idle(cache, video_cache_oldest(cache, true));
        entry->decodes = true;
        cache->decoders++;
    }
    return entry->video;
}
