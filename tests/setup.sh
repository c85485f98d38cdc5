#!/bin/sh
# Installs what building and testing need and this machine lacks: build tools by apt, Python packages into .venv.
#
# usage: tests/setup.sh [REQUIREMENTS.txt ...]     (tests/requirements.txt is always among them)
#
# Says which Debian packages and why before it asks for root, and is silent where nothing is missing. Rust and Python are
# yours to bring. Exit status 2: something is missing that it cannot install.
set -eu
cd "$(dirname "$0")/.."

rust_min=1.95
python_min=3.11
logs=.build/setup

main() {
    mkdir -p "$logs"
    check_rust
    check_python
    missing
    [ -z "$packages" ] || install_packages
    environment tests/requirements.txt "$@"
}

stop() {
    printf 'setup: %s\n' "$@" >&2
    exit 2
}

check_rust() {
    have=$(cargo --version 2>/dev/null | cut -d' ' -f2) || have=
    [ -n "$have" ] || stop "cargo is not on the path; Rust $rust_min or later is needed (https://rustup.rs)"
    at_least "$have" "$rust_min" || stop "cargo is $have; Rust $rust_min or later is needed (rustup update)"
}

check_python() {
    have=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || have=
    [ -n "$have" ] || stop "python3 is not on the path; Python $python_min or later is needed"
    at_least "$have" "$python_min" || stop "python3 is $have; Python $python_min or later is needed"
}

at_least() {
    [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]
}

# Each tool is asked for what it is used for, since a package may be there in part: a compiler without libc's headers, a
# Python without the pip that a virtual environment starts with.
missing() {
    packages=''
    reasons=''
    printf '#include <stdlib.h>\nint main(void) { return 0; }\n' | cc -x c - -o "$logs/cc-works" 2>/dev/null ||
        lacks "gcc libc6-dev" "linking, and the C parts: TLS, compression, allocator, JPEG"
    cmake --version >/dev/null 2>&1 || lacks cmake "libjpeg-turbo is built with it"
    # Without an assembler libjpeg-turbo builds all the same, without its vector code.
    case $(uname -m) in
    x86_64) nasm -v >/dev/null 2>&1 || lacks nasm "the vector code of libjpeg-turbo and dav1d" ;;
    esac
    meson --version >/dev/null 2>&1 || lacks meson "dav1d (AVIF) is built with it"
    ninja --version >/dev/null 2>&1 || lacks ninja-build "and with this"
    # FFmpeg is the system's, and what calls it is made from its headers as they are here.
    pkg-config --version >/dev/null 2>&1 || lacks pkg-config "FFmpeg's libraries are found by it"
    for library in libavformat libavcodec libavutil; do
        pkg-config --exists "$library" 2>/dev/null || lacks "$library-dev" "video: containers and codecs"
    done
    [ -n "${LIBCLANG_PATH-}" ] || ls /usr/lib/llvm-*/lib/libclang.so >/dev/null 2>&1 ||
        lacks libclang-dev "reads FFmpeg's headers when it is built against them"
    python3 -c 'import venv, ensurepip' 2>/dev/null || lacks python3-venv "Python packages go into .venv, never beside the system's"
}

lacks() {
    packages="$packages $1"
    reasons="$reasons
setup:   $1: $2"
}

install_packages() {
    command="apt-get install -y --no-install-recommends$packages"
    command -v apt-get >/dev/null || stop "missing, and there is no apt here to install them:$reasons"
    printf 'setup: missing on this machine:%s\n' "$reasons"
    if [ "$(id -u)" -eq 0 ]; then
        root=
    elif command -v sudo >/dev/null; then
        # Only where someone can type a password is one asked for.
        if [ -t 0 ]; then root=sudo; else root="sudo -n"; fi
    else
        stop "neither root nor sudo here; please run as root: apt-get update && $command"
    fi
    printf 'setup: %s%s\n' "${root:+$root }" "$command"
    for step in update "${command#apt-get }"; do
        apt "$step" || stop "that failed, see $PWD/$logs/apt.log; by hand: apt-get update && $command"
    done
    missing
    [ -z "$packages" ] || stop "installed, and still missing:$reasons"
}

apt() {
    # shellcheck disable=SC2086  # both are lists of words
    $root env DEBIAN_FRONTEND=noninteractive apt-get -q $1 >"$logs/apt.log" 2>&1 </dev/null || {
        tail -n 15 "$logs/apt.log" >&2
        return 1
    }
}

# A stamp holds the hash of all that decides what is in .venv, so that a second run costs nothing and a changed pin is
# installed. A clone that moved gets a new environment: a virtual environment knows its folder.
environment() {
    base="$PWD $(python3 -c 'import sys; print(sys.version, sys.base_prefix)')"
    if [ "$(cat .venv/base 2>/dev/null)" != "$base" ]; then
        printf 'setup: python %s in .venv\n' "$(python3 -c 'import platform; print(platform.python_version())')"
        rm -rf .venv
        python3 -m venv .venv
        printf '%s\n' "$base" >.venv/base
    fi
    for list in "$@"; do
        stamp=.venv/$(sha256sum "$list" | cut -c1-16).installed
        [ ! -e "$stamp" ] || continue
        printf 'setup: %s into .venv\n' "$list"
        .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-input --only-binary=:all: -r "$list" \
            >"$logs/pip.log" 2>&1 || {
            tail -n 15 "$logs/pip.log" >&2
            stop "pip could not install $list, see $PWD/$logs/pip.log"
        }
        : >"$stamp"
    done
}

main "$@"
