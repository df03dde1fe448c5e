// Text and JSON as bytes. The engine has neither TextEncoder nor TextDecoder.

/** The UTF-8 bytes of a text. Halves of characters become U+FFFD. */
export function encode(text) {
  const out = new Uint8Array(text.length * 3);
  let at = 0;
  for (let index = 0; index < text.length; index++) {
    let code = text.charCodeAt(index);
    if (code < 0x80) {
      out[at++] = code;
      continue;
    }
    if (code >= 0xd800 && code < 0xe000) {
      const low = text.charCodeAt(index + 1);
      if (code < 0xdc00 && low >= 0xdc00 && low < 0xe000) {
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
        index++;
      } else {
        code = 0xfffd;
      }
    }
    if (code < 0x800) {
      out[at++] = 0xc0 | (code >> 6);
    } else {
      if (code < 0x10000) {
        out[at++] = 0xe0 | (code >> 12);
      } else {
        out[at++] = 0xf0 | (code >> 18);
        out[at++] = 0x80 | ((code >> 12) & 0x3f);
      }
      out[at++] = 0x80 | ((code >> 6) & 0x3f);
    }
    out[at++] = 0x80 | (code & 0x3f);
  }
  return out.subarray(0, at);
}

/** The text of UTF-8 bytes. Throws an error if they are none. */
export function decode(bytes) {
  let text = "";
  // A long list of arguments would not fit on the stack.
  for (let start = 0; start < bytes.length; start += 4096) {
    text += String.fromCharCode.apply(null, bytes.subarray(start, start + 4096));
  }
  return /^[\x00-\x7f]*$/.test(text) ? text : decodeURIComponent(escape(text));
}

/** A value as JSON in bytes: none for `undefined`. */
export function toJson(value) {
  const text = JSON.stringify(value);
  return text === undefined ? new Uint8Array() : encode(text);
}

/** The value of JSON in bytes: `undefined` for none. */
export function fromJson(bytes) {
  return bytes.length === 0 ? undefined : JSON.parse(decode(bytes));
}
