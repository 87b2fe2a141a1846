{{/* callgate.image is the reference of an image: (list VALUES CHART). toString, because --set makes a number of the tag 12. */}}
{{- define "callgate.image" -}}
{{- $image := index . 0 -}}
{{- if $image.digest -}}
{{ printf "%s@%s" $image.repository $image.digest }}
{{- else -}}
{{ printf "%s:%s" $image.repository (default (index . 1).AppVersion $image.tag | toString) }}
{{- end -}}
{{- end -}}
