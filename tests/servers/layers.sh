# Staging of image layers, read in by the build.sh of a server: it says begin, fills $stage, says
# finish, and so prints a folder under the cache that is named by its content. $here is its folder.

# begin NAME VERSIONS FILE...: ends the script if this content is staged already. The C library comes
# from the host, so the host's is part of the content, as are VERSIONS of what else comes from there.
begin() {
    cache=${BERTH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/berth}
    name=$1 versions=$2
    shift 2
    key=$({
        (cd "$here" && cat ../layers.sh build.sh "$@")
        echo "$versions"
        uname -m
        ldd --version 2>&1 | head -n 1
    } | sha256sum | cut -c 1-16)
    out=$cache/servers/$name-$key
    if [ -e "$out/complete" ]; then
        echo "$out"
        exit 0
    fi
    mkdir -p "$(dirname "$out")"
    stage=$(mktemp -d "$(dirname "$out")/.stage.XXXXXX")
    trap 'rm -rf "$stage"' EXIT INT TERM
}

# add_libraries LAYER: adds each library that standard input names at the very path where the loader
# looks for it; links become files.
add_libraries() {
    sort -u | while read -r library; do
        mkdir -p "$stage/$1$(dirname "$library")"
        cp -L "$library" "$stage/$1$library"
    done
}

# finish LAYER: adds to LAYER what every image needs, and puts the layers in their place.
finish() {
    mkdir -p "$stage/$1/etc" "$stage/$1/tmp"
    echo 'root:x:0:0:root:/:/sbin/nologin' > "$stage/$1/etc/passwd"
    echo 'nonroot:x:65532:65532:nonroot:/tmp:/sbin/nologin' >> "$stage/$1/etc/passwd"
    printf 'root:x:0:\nnonroot:x:65532:\n' > "$stage/$1/etc/group"
    chmod -R u=rwX,go=rX "$stage/$1" "$stage/app"
    chmod 1777 "$stage/$1/tmp"
    chmod 0755 "$stage"
    touch "$stage/complete"
    # Two builds at once make the same content: whoever comes second drops his own.
    mv -T "$stage" "$out" 2>/dev/null || [ -e "$out/complete" ]
    echo "$out"
}
