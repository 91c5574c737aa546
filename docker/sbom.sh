#!/bin/sh
# sbom.sh PROGRAM VERSION [PACKAGE… | NAME=VERSION…]: lists the contents of an image on standard output, as SPDX 2.3 in JSON: PROGRAM,
# which is lensd of that VERSION, and the named Debian packages (without names: all that are installed) with the versions
# that dpkg knows. NAME=VERSION adds a library that is in no package. The same contents give the same bytes;
# SOURCE_DATE_EPOCH is the date.
set -eu
program=$1 version=$2
shift 2
also=$(printf '%s\n' "$@" | sed -n '/=/p')
packages=$(printf '%s\n' "$@" | sed '/=/d')
created=$(date -u -d "@${SOURCE_DATE_EPOCH:-0}" +%Y-%m-%dT%H:%M:%SZ)
checksum=$(sha256sum "$program" | cut -d ' ' -f 1)
list=$(
    # shellcheck disable=SC2086  # names are words
    dpkg-query -W -f '${db:Status-Abbrev}\t${Package}\t${Version}\t${Architecture}\t${source:Package} ${source:Version}\n' \
        $packages | sed -n 's/^ii *\t//p' | LC_ALL=C sort
    printf '%s\n' "$also" | sed -n 's/=/\t/p'
)
contents=$(printf '%s\n' "$created" "$version" "$checksum" "$list" | sha256sum | cut -d ' ' -f 1)
printf '%s\n' "$list" | awk -F '\t' -v version="$version" -v checksum="$checksum" -v created="$created" -v contents="$contents" '
    function encoded(text) { gsub(/%/, "%25", text); gsub(/\+/, "%2B", text); gsub(/:/, "%3A", text); return text }
    function described(id) {
        return ",\n  {\"spdxElementId\": \"SPDXRef-DOCUMENT\", \"relationshipType\": \"DESCRIBES\", \"relatedSpdxElement\": \"" id "\"}"
    }
    BEGIN {
        print "{\"spdxVersion\": \"SPDX-2.3\", \"dataLicense\": \"CC0-1.0\", \"SPDXID\": \"SPDXRef-DOCUMENT\", \"name\": \"lensd-" version "\","
        print " \"documentNamespace\": \"https://spdx.org/spdxdocs/lensd-" version "-" contents "\","
        print " \"creationInfo\": {\"created\": \"" created "\", \"creators\": [\"Tool: lensd-sbom.sh\"]},"
        print " \"packages\": ["
        printf "  {\"SPDXID\": \"SPDXRef-lensd\", \"name\": \"lensd\", \"versionInfo\": \"%s\", \"downloadLocation\": \"NOASSERTION\", \"filesAnalyzed\": false, \"licenseDeclared\": \"Apache-2.0\", \"checksums\": [{\"algorithm\": \"SHA256\", \"checksumValue\": \"%s\"}]}", version, checksum
        links = substr(described("SPDXRef-lensd"), 3)
    }
    NF {
        id = "SPDXRef-" $1 ($3 ? "-" $3 : "")
        gsub(/[^a-zA-Z0-9.-]/, ".", id)
        printf ",\n  {\"SPDXID\": \"%s\", \"name\": \"%s\", \"versionInfo\": \"%s\", \"downloadLocation\": \"NOASSERTION\", \"filesAnalyzed\": false", id, $1, $2
        if ($3)
            printf ", \"supplier\": \"Organization: Debian\", \"sourceInfo\": \"built from %s\", \"externalRefs\": [{\"referenceCategory\": \"PACKAGE-MANAGER\", \"referenceType\": \"purl\", \"referenceLocator\": \"pkg:deb/debian/%s@%s?arch=%s\"}]", $4, encoded($1), encoded($2), $3
        printf "}"
        links = links described(id)
    }
    END { print "],\n \"relationships\": [\n" links "]}" }'
