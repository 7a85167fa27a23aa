#!/usr/bin/env bash
# Datasets on nginx, plain and TLS: golden data is the same as local, and reading takes
# the round trips and requests that are required; of commands, nginx counts them: a
# request is one round trip later than the last that was answered before it came. Where
# there are too many, they are counted again with round trips of 4 and 16 times the
# length, in which other programs hardly count. The figures of tests/bench/README.md have
# 30 ms.
#
#     tests/formats/storage/http.sh [build/release [MS]]
set -eu
cd "$(dirname "$0")/../../.."
build=${1:-build/release}
trip=${2:-100}
modules=/usr/lib/nginx/modules
if ! command -v nginx >/dev/null || [ ! -f $modules/ngx_http_lua_module.so ] ||
    [ ! -x "$build/tests/bench/bench_http" ]; then
    echo 'skipped: nginx, its lua module or libcurl not found'
    echo '0 passed, 0 failed, 1 skipped'
    exit 0
fi
dir=$(mktemp -d)
trap 'kill "$(cat "$dir/pid" 2>/dev/null)" 2>/dev/null || true; rm -rf "$dir"' EXIT
mkdir "$dir/www" "$dir/tmp"
ln -s "$PWD/tests/data/golden" "$dir/www/golden"
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 \
    -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1 -keyout "$dir/key.pem" \
    -out "$dir/cert.pem" 2>/dev/null
# Of two ports in a row.
configure() {
    cat <<END
load_module $modules/ndk_http_module.so;
load_module $modules/ngx_http_lua_module.so;
pid $dir/pid;
error_log $dir/error.log;
$([ "$(id -u)" != 0 ] || echo 'user root;')
events { worker_connections 2048; }
http {
    access_log off;
    client_body_temp_path $dir/tmp; proxy_temp_path $dir/tmp;
    fastcgi_temp_path $dir/tmp; uwsgi_temp_path $dir/tmp; scgi_temp_path $dir/tmp;
    # As in Debian's nginx.conf. The ends of answers then wait for acknowledgements.
    sendfile on; tcp_nopush on;
    keepalive_requests 1000000;
    root $dir/www;
    autoindex on;
    lua_shared_dict trips 64k;
    server {
        listen 127.0.0.1:$port;
        access_by_lua_block {
            local trips = ngx.shared.trips
            local own = (trips:get('last') or 0) + 1
            ngx.sleep((trips:get('ms') or $trip) / 1000)
            trips:set('last', math.max(own, trips:get('last') or 0))
        }
        location = /trips {
            access_by_lua_block { return }
            content_by_lua_block {
                local trips = ngx.shared.trips
                ngx.say(trips:get('last') or 0)
                trips:delete('last')
                if ngx.var.arg_ms then trips:set('ms', tonumber(ngx.var.arg_ms)) end
            }
        }
        location /golden { access_by_lua_block { ngx.sleep(0.01) } }
    }
    server {
        access_by_lua_block {
            ngx.sleep((ngx.shared.trips:get('ms') or $trip) / 1000)
        }
        location /golden { access_by_lua_block { ngx.sleep(0.01) } }
        listen 127.0.0.1:$((port + 1)) ssl;
        ssl_certificate $dir/cert.pem; ssl_certificate_key $dir/key.pem;
    }
}
END
}
tries=0
until port=$((20000 + RANDOM % 12000)) && configure >"$dir/conf" &&
    nginx -c "$dir/conf" 2>"$dir/why"; do # they may be in use
    [ $((tries += 1)) -lt 20 ] || { cat "$dir/why"; exit 1; }
done
/usr/bin/python3 - "$build/bags" "$dir/www" <<'END'
import base64, json, random, subprocess, sys
random.seed(1)
def pack(name, count, size, *options):
    rows = ''.join(json.dumps({'image': {'base64': base64.b64encode(
        random.randbytes(size)).decode()}, 'label': i}) + '\n' for i in range(count))
    subprocess.run([sys.argv[1], 'pack', '-', f'{sys.argv[2]}/{name}', '--no-sync',
                    '--spec', 'image=bytes,label=int(4)', *options],
                   input=rows.encode(), check=True, stdout=subprocess.DEVNULL)
pack('big', 2000, 30000)
pack('shards', 1000, 100, '--shard-length', '1')
pack('ten', 100, 3000, '--shard-length', '10')
pack('hundred', 100, 100, '--shard-length', '1')
END
for data in shards ten; do
    cp -r "$dir/www/$data" "$dir/www/known_$data"
    "$build/bags" catalogue "$dir/www/known_$data" >/dev/null
done
passed=0 failed=0
part() {
    if "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
}
# same LOCAL URL: what export writes.
same() {
    rm -rf "$dir/a" "$dir/b"
    "$build/bags" export "$1" "$dir/a" --raw >/dev/null 2>"$dir/first" || return 0
    BAGS_CA_FILE=$dir/cert.pem "$build/bags" export "$2" "$dir/b" --raw \
        >/dev/null && diff -r "$dir/a" "$dir/b"
}
# repeat "FACTORS" COMMAND...: runs it with $ms, the length of a round trip, until it is good.
repeat() {
    local factor factors=$1
    shift
    for factor in $factors; do
        ms=$((factor * trip))
        curl -s "http://127.0.0.1:$port/trips?ms=$ms" >/dev/null
        ! "$@" || return 0
    done
    return 1
}
# trips MOST COMMAND...
trips() {
    local most=$1 count
    shift
    "$build/bags" "$@" >/dev/null || return
    sleep "$(awk "BEGIN { print 3 * $ms / 1000 }")" # what nobody waits for
    count=$(curl -s "http://127.0.0.1:$port/trips")
    [ "$count" -le "$most" ] ||
        { echo "bags $*: $count round trips of $ms ms, not $most" >&2; return 1; }
}
bench() {
    "$build/tests/bench/bench_http" "$@" "$trip" "$dir/cert.pem"
}
for data in big ten hundred; do
    part repeat "1 4 16" trips 4 get "http://127.0.0.1:$port/$data" 5 image
    part repeat "1 4 16" trips 4 get "http://127.0.0.1:$port/$data" -1 image
done
part repeat "1 4 16" trips 4 info "http://127.0.0.1:$port/big"
part repeat "1 4 16" trips 5 info "http://127.0.0.1:$port/ten"
part repeat "1 4 16" trips 20 get "http://127.0.0.1:$port/shards" 5 label
# With a catalogue.
for data in shards ten; do
    part repeat "1 4 16" trips 3 get "http://127.0.0.1:$port/known_$data" 0:0
    part repeat "1 4 16" trips 5 get "http://127.0.0.1:$port/known_$data" 5 label
done
part repeat "1 4 16" trips 9 load "http://127.0.0.1:$port/known_shards" --batch 256 \
    --batches 1 --threads 1
# Opening, and the connections and Bags of the first batch, are the rest.
for count in 32 256; do
    part repeat "1 4 16" trips 9 load "http://127.0.0.1:$port/big" --batch $count --batches 1 \
        --threads 1
done
for url in "http://127.0.0.1:$port" "https://127.0.0.1:$((port + 1))"; do
    for data in tests/data/golden/*/*/data tests/data/golden/*/*/data.bag; do
        part same "$data" "$url/${data#tests/data/}"
    done
    part bench "$url/big" image
    part bench --open "$url/shards"
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
