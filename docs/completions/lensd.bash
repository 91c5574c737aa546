# Written by tests/test_reference.py --update. Do not edit.
_lensd()
{
    local current=${COMP_WORDS[COMP_CWORD]} words=
    case ${COMP_WORDS[COMP_CWORD - 1]} in
    --load) words='eager lazy' ;;
    --ready) words='any strict' ;;
    --masks) words='rle polygon png' ;;
    --precision) words='fp32 tf32 bf16 fp16 int8 auto' ;;
    --confine) words='on off' ;;
    --log-format) words='text json auto' ;;
    --log-level) words='debug info warn error' ;;
    --sort) words='order time' ;;
    --target) words='vnni avx2' ;;
    esac
    if [ "$COMP_CWORD" -eq 1 ]; then
        words='serve predict embed devices health inspect bench quantize pull key'
    elif [ -z "$words" ] && [[ $current == -* ]]; then
        case ${COMP_WORDS[1]} in
        serve) words='--model --model-name --models --immich --watch --default-model --load --preload --idle-unload --ready --top-k --confidence --iou --max-detections --classes --agnostic --normalize --masks --device --precision --cache --threads --workers --fast-decode --max-batch --memory --gpu-memory --old-libheif --faces --host --port --port-file --admin-port --grpc-port --zmq-port --zmq-timeout --unix --unix-mode --tls-cert --tls-key --pid-file --user --core-dumps --confine --check --http-threads --response-cache --config --api-keys --admin-key-file --protect-health --cors-origin --allowed-hosts --trusted-proxies --proxy-protocol --max-body --max-upload-memory --max-header --max-inflate-ratio --max-images --max-queue --max-queue-bytes --max-queue-ms --max-json-depth --max-pixels --max-side --max-scans --max-connections --max-connections-per-address --header-timeout --body-timeout --answer-timeout --idle-timeout --default-timeout --drain-delay --grace --log-format --log-level --trace-endpoint --trace-sample' ;;
        predict) words='--model --top-k --size --confidence --iou --max-detections --classes --agnostic --normalize --masks --device --precision --cache --threads --workers --fast-decode --max-batch --memory --gpu-memory --old-libheif --config --max-queue --max-pixels --max-side --max-scans --annotate --text --json --jsonl' ;;
        embed) words='--model --size --normalize --device --precision --cache --threads --workers --fast-decode --max-batch --memory --gpu-memory --old-libheif --config --max-queue --max-pixels --max-side --max-scans --text' ;;
        devices) words='--config --json' ;;
        health) words='--host --port --unix --tls-cert --config --api-key-file' ;;
        inspect) words='--model --precision --cache --threads --old-libheif --profile --profile-batch --sort --config --labels --json' ;;
        bench) words='--model --device --precision --cache --threads --batch --time --config --json' ;;
        quantize) words='--model --calibrate --output --target --threads --old-libheif --config --json' ;;
        pull) words='--models --output --config' ;;
        key) words='--rate --burst' ;;
        esac
    fi
    # Without words bash completes file names.
    COMPREPLY=()
    [ -z "$words" ] || mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
}
complete -o default -F _lensd lensd
