#!/bin/sh
# Makes the certificates of the fault server again; needs OpenSSL 3. The keys are for tests only, and nothing trusts them.
# They are valid from 2020 to 2119, whatever the clock says; the one that has to be expired ended in 2001.
set -eu
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
touch "$work/index"
cat > "$work/ca.cnf" <<END
[ca]
default_ca = test
[test]
database = $work/index
new_certs_dir = $work
rand_serial = yes
default_md = sha256
policy = any
copy_extensions = copy
x509_extensions = signed
[any]
commonName = supplied
[signed]
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
END

make() {  # name, its extension, first day, last day, how it is signed
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc -subj "/CN=asyncchat tests: $1" \
        -addext "$2" -addext "$5" -keyout "$work/$1.key" -out "$work/$1.csr"
    name=$1 first=$3 last=$4
    shift 5
    openssl ca -batch -notext -config "$work/ca.cnf" -startdate "$first" -enddate "$last" "$@" \
        -in "$work/$name.csr" -out "$work/$name.crt"
}
leaf="basicConstraints=critical,CA:FALSE"
here="subjectAltName=DNS:localhost,IP:127.0.0.1"
away="subjectAltName=DNS:example.org,IP:10.9.8.7"
start=20200101000000Z end=21190101000000Z
signed="-cert authority.pem -keyfile $work/authority.key"

make authority "keyUsage=critical,keyCertSign,cRLSign" $start $end "basicConstraints=critical,CA:TRUE" \
    -selfsign -keyfile "$work/authority.key"
cp "$work/authority.crt" authority.pem
make self_signed "$here" $start $end "$leaf" -selfsign -keyfile "$work/self_signed.key"
make good "$here" $start $end "$leaf" $signed
make wrong_name "$away" $start $end "$leaf" $signed
make expired "$here" 20000101000000Z 20010101000000Z "$leaf" $signed
for name in self_signed good wrong_name expired; do
    cat "$work/$name.key" "$work/$name.crt" > "$name.pem"
done
