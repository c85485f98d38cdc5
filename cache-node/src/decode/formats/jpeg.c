/*
 * JPEG with the behaviour of Pillow's decoder.
 *
 * The libjpeg API and not TurboJPEG's: its memory source invents an end marker where data ends, so that a truncated picture looks
 * whole, and its error code cannot tell a warning from a fatal error that followed one. Here the source suspends at the end of
 * data, as Pillow's does, and warnings are ignored, as Pillow does.
 */
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "jpeglib.h"
#include "jerror.h"

enum { DECODED = 0, TRUNCATED = 1, BROKEN = 2, SIZE_DIFFERS = 3, OUT_OF_MEMORY = 4 };

/*
 * PAD: a cut picture is gray from where its data ends. PLAIN: components are not converted, whatever they seem to be. QUICK: the cheap
 * transforms, and the picture scaled down by a power of two, which stands from SHIFT on.
 */
enum { PAD = 1, PLAIN = 2, QUICK = 4, SHIFT = 8 };

/* Passes over `skip` bytes and gives the window after them; length 0 at the end. It stays valid until the next call. */
typedef const unsigned char *(*more_fn)(void *context, uint64_t skip, size_t *length);

struct errors {
  struct jpeg_error_mgr public;
  jmp_buf escape;
};

struct source {
  struct jpeg_source_mgr public;
  more_fn more; /* NULL: the first window is all there is */
  void *context;
  uint64_t skip; /* bytes to pass over before the next window */
  int pad;       /* at the end of data, make up an end marker: libjpeg then fills what is left with gray */
};

static void on_error(j_common_ptr common) { longjmp(((struct errors *)common->err)->escape, 1); }
static void on_message(j_common_ptr common) { (void)common; }
static void on_source(j_decompress_ptr jpeg) { (void)jpeg; }

static const unsigned char end_marker[2] = {0xff, JPEG_EOI};

/* FALSE suspends: whoever asked sees that data is lacking, and no end marker is made up, unless asked for. */
static boolean on_empty(j_decompress_ptr jpeg) {
  struct source *source = (struct source *)jpeg->src;
  size_t length = 0;
  const unsigned char *window = source->more ? source->more(source->context, source->skip, &length) : NULL;
  source->skip = 0;
  if (window == NULL || length == 0) {
    if (!source->pad) return FALSE;
    window = end_marker;
    length = sizeof end_marker;
  }
  source->public.next_input_byte = window;
  source->public.bytes_in_buffer = length;
  return TRUE;
}

static void on_skip(j_decompress_ptr jpeg, long count) {
  struct source *source = (struct source *)jpeg->src;
  size_t here;
  if (count <= 0) return;
  here = (size_t)count < source->public.bytes_in_buffer ? (size_t)count : source->public.bytes_in_buffer;
  source->skip += (uint64_t)count - here;
  source->public.next_input_byte += here;
  source->public.bytes_in_buffer -= here;
}

/*
 * Decodes into `pixels`, which holds width * height * layers bytes: layers 1 = gray, 3 = RGB, 4 = CMYK as stored. `size` is the width
 * and height that came out, less than the picture's with QUICK alone. `rows` counts those that are written; with PAD, a cut picture is gray from where its data ends. `message` holds JMSG_LENGTH_MAX (200)
 * bytes and is always a string.
 */
int framecache_jpeg_decode(const unsigned char *first, size_t length, more_fn more, void *context, int layers, unsigned width,
                           unsigned height, int flags, unsigned char *pixels, unsigned *size, unsigned *rows, char *message) {
  struct jpeg_decompress_struct jpeg;
  struct errors errors;
  struct source source;
  volatile int outcome = BROKEN;
  int header;

  memset(&jpeg, 0, sizeof jpeg);
  memset(&source, 0, sizeof source);
  message[0] = 0;
  *rows = 0;
  size[0] = width;
  size[1] = height;
  jpeg.err = jpeg_std_error(&errors.public);
  errors.public.error_exit = on_error;
  errors.public.output_message = on_message;
  if (setjmp(errors.escape)) {
    (*errors.public.format_message)((j_common_ptr)&jpeg, message);
    outcome = errors.public.msg_code == JERR_OUT_OF_MEMORY ? OUT_OF_MEMORY : BROKEN;
    goto end;
  }
  jpeg_create_decompress(&jpeg);
  source.public.init_source = on_source;
  source.public.fill_input_buffer = on_empty;
  source.public.skip_input_data = on_skip;
  source.public.resync_to_restart = jpeg_resync_to_restart;
  source.public.term_source = on_source;
  source.public.next_input_byte = first;
  source.public.bytes_in_buffer = length;
  source.more = more;
  source.context = context;
  source.pad = flags & PAD;
  jpeg.src = &source.public;

  do header = jpeg_read_header(&jpeg, FALSE);
  while (header == JPEG_HEADER_TABLES_ONLY);
  outcome = TRUNCATED;
  if (header != JPEG_HEADER_OK) goto end;
  /* Everything else stays at its default, which is what Pillow has: ISLOW, fancy upsampling, block smoothing. */
  jpeg.out_color_space = layers == 1 ? JCS_GRAYSCALE : layers == 3 ? JCS_RGB : JCS_CMYK;
  if (flags & PLAIN) jpeg.jpeg_color_space = jpeg.out_color_space = JCS_UNKNOWN;
  if (jpeg.image_width != width || jpeg.image_height != height) {
    outcome = SIZE_DIFFERS;
    goto end;
  }
  if (flags & QUICK) {
    jpeg.dct_method = JDCT_IFAST;
    jpeg.do_fancy_upsampling = FALSE;
    jpeg.scale_num = 1;
    jpeg.scale_denom = 1u << (flags >> SHIFT);
  }
  if (!jpeg_start_decompress(&jpeg)) goto end; /* a progressive picture is read to its end here */
  size[0] = jpeg.output_width;
  size[1] = jpeg.output_height;
  if (size[0] > width || size[1] > height || jpeg.output_components != layers ||
      (!(flags & QUICK) && (size[0] != width || size[1] != height))) {
    outcome = SIZE_DIFFERS;
    goto end;
  }
  while (jpeg.output_scanline < jpeg.output_height) {
    JSAMPROW row = pixels + (size_t)jpeg.output_scanline * size[0] * (size_t)layers;
    if (jpeg_read_scanlines(&jpeg, &row, 1) != 1) goto end;
    *rows = jpeg.output_scanline;
  }
  /* All rows are there, so that a lack of data is no error any more; a broken trailer still is, as in Pillow. */
  (void)jpeg_finish_decompress(&jpeg);
  outcome = DECODED;
end:
  jpeg_destroy_decompress(&jpeg);
  return outcome;
}
