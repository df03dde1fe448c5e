#!/bin/sh
# Builds an OCI image that contains the program `ostraca`, the shared libraries that it needs, and nothing else.
#
#     deploy/image/build.sh
#
# Settings, as environment variables:
#
#     BINARY=FILE    puts this program into the image, instead of a release build
#     IMAGE=NAME     the image's name; localhost/ostraca:VERSION unless set
#     ARCHIVE=FILE   also writes the image to this file, for `podman load`, `docker load` or `skopeo copy`
#
# The image is built from scratch, so no registry is asked. Its only tool is buildah, which runs as root or with user
# namespaces.
set -eu
umask 022
repository=$(cd "$(dirname "$0")/../.." && pwd)

fail() {
    echo "image: $1" >&2
    exit 1
}

command -v buildah >/dev/null || fail 'buildah is missing. Type: sudo apt-get install buildah'

if [ -z "${BINARY:-}" ]; then
    echo 'image: building ostraca in release mode (10 to 20 minutes on two processors the first time)'
    CARGO_TARGET_DIR=$(realpath -m "${CARGO_TARGET_DIR:-$repository/target}")
    export CARGO_TARGET_DIR
    (cd "$repository" && cargo build --locked --release --package ostraca --bin ostraca)
    BINARY=$CARGO_TARGET_DIR/release/ostraca
fi
if [ ! -f "$BINARY" ] || [ ! -x "$BINARY" ]; then
    fail "$BINARY is not a program"
fi
version=$("$BINARY" --version | cut -d ' ' -f 2)
[ -n "$version" ] || fail "$BINARY --version prints no version"
image=${IMAGE:-localhost/ostraca:$version}
# The time in the image is that of the commit, so that the same program makes the same image.
time=${SOURCE_DATE_EPOCH:-$(git -C "$repository" log -1 --format=%ct 2>/dev/null || date +%s)}
revision=$(git -C "$repository" rev-parse HEAD 2>/dev/null || echo unknown)

work=$(mktemp -d)
container=
finish() {
    status=$?
    [ -z "$container" ] || buildah rm "$container" >/dev/null || true
    rm -rf "$work"
    exit "$status"
}
trap finish EXIT
trap 'exit 130' INT TERM

# The root, and apart from it what belongs to the node's user: the data directory, which a volume covers.
root=$work/root
install -d -m 0755 "$root" "$root/usr/bin" "$root/etc/ostraca" "$root/var/lib" "$root/proc" "$root/dev" "$root/sys"
install -d -m 0700 "$work/owned/ostraca"
install -m 0755 "$BINARY" "$root/usr/bin/ostraca"

# Each library at the path at which this system's loader finds it, and the loader itself.
ldd "$BINARY" 2>/dev/null | awk '$2 == "=>" && $3 ~ /^\// { print $3 } $1 ~ /^\// { print $1 }' |
    while read -r library; do
        install -D -m 0755 "$library" "$root$library"
    done
if ldd "$BINARY" 2>/dev/null | grep -q 'not found'; then
    fail "a shared library is missing: $(ldd "$BINARY" | grep 'not found')"
fi
# From 2.34 on, glibc resolves host names by itself. Before, it loads modules that `ldd` does not list.
libc=$(ldd "$BINARY" 2>/dev/null | awk '$1 == "libc.so.6" { print $3 }')
if [ -n "$libc" ]; then
    glibc=$(getconf GNU_LIBC_VERSION | cut -d ' ' -f 2)
    [ "$(printf '2.34\n%s\n' "$glibc" | sort -V | head -1)" = 2.34 ] || fail "glibc is $glibc, must be 2.34 or newer"
fi

echo 'ostraca:x:10001:10001:Ostraca node:/var/lib/ostraca:/nonexistent' >"$root/etc/passwd"
echo 'ostraca:x:10001:' >"$root/etc/group"
echo 'hosts: files dns' >"$root/etc/nsswitch.conf"
chmod 0644 "$root/etc/passwd" "$root/etc/group" "$root/etc/nsswitch.conf"

container=$(buildah from scratch)
buildah copy --quiet "$container" "$root/" / >/dev/null
buildah copy --quiet --chown 10001:10001 "$container" "$work/owned/" /var/lib/ >/dev/null
buildah config \
    --user 10001:10001 \
    --entrypoint '["/usr/bin/ostraca"]' \
    --cmd 'run --config /var/lib/ostraca' \
    --workingdir /var/lib/ostraca \
    --port 7411/udp \
    --stop-signal SIGTERM \
    --label org.opencontainers.image.title=Ostraca \
    --label org.opencontainers.image.description='Hosts durable entities whose logic is a WebAssembly component' \
    --label org.opencontainers.image.licenses=Apache-2.0 \
    --label org.opencontainers.image.version="$version" \
    --label org.opencontainers.image.revision="$revision" \
    "$container"
buildah commit --quiet --format oci --timestamp "$time" "$container" "$image" >/dev/null
if [ -n "${ARCHIVE:-}" ]; then
    rm -f "$ARCHIVE"
    buildah push --quiet "$image" "oci-archive:$ARCHIVE:$image"
fi

bytes=$(buildah images --json "$image" | sed -n 's/.*"size": "\(.*\)".*/\1/p' | head -1)
echo "image: $image, $bytes"
