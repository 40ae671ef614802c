package web

import (
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

func appendStatusLine(b []byte, minor, status int) []byte {
	if status == http.StatusOK && minor == 1 {
		return append(b, "HTTP/1.1 200 OK\r\n"...)
	}
	b = append(b, "HTTP/1."...)
	b = append(b, byte('0'+minor), ' ')
	b = strconv.AppendInt(b, int64(status), 10)
	b = append(b, ' ')
	if text := http.StatusText(status); text != "" {
		b = append(b, text...)
	} else {
		b = strconv.AppendInt(append(b, "status code "...), int64(status), 10)
	}
	return append(b, "\r\n"...)
}

type fieldSet uint16

const (
	contentLength fieldSet = 1 << iota
	contentType
	contentEncoding
	transferEncoding
	connectionField
	upgradeField
	trailerField
	dateField
	trailerPrefix // any field with the prefix http.TrailerPrefix
	socketPrefix  // any field with the prefix Sec-Websocket-
)

func fieldBit(key string) fieldSet {
	switch key {
	case "Content-Length":
		return contentLength
	case "Content-Type":
		return contentType
	case "Content-Encoding":
		return contentEncoding
	case "Transfer-Encoding":
		return transferEncoding
	case "Connection":
		return connectionField
	case "Upgrade":
		return upgradeField
	case "Trailer":
		return trailerField
	case "Date":
		return dateField
	}
	switch {
	case strings.HasPrefix(key, http.TrailerPrefix):
		return trailerPrefix
	case strings.HasPrefix(key, "Sec-Websocket-"):
		return socketPrefix
	}
	return 0
}

// headerField is a field of a response. bit is the result of fieldBit.
type headerField struct {
	key    string
	bit    fieldSet
	values []string
}

// appendSortedFields appends the fields of h to fields, sorted by key. present contains the bits of these fields, as
// returned by fieldBit. A field with nil values is in present only if it is Content-Type, Content-Length, Date or a
// trailer.
func appendSortedFields(fields []headerField, h http.Header) (_ []headerField, present fieldSet) {
	if values, ok := h["Content-Type"]; ok && len(h) == 1 {
		fields = append(fields, headerField{"Content-Type", contentType, values})
	} else {
		for key, values := range h {
			fields = append(fields, headerField{key, fieldBit(key), values})
		}
		slices.SortFunc(fields, func(a, b headerField) int { return strings.Compare(a.key, b.key) })
	}
	for i := range fields {
		if f := &fields[i]; f.values != nil || f.bit&(dateField|trailerPrefix|contentType|contentLength) != 0 {
			present |= f.bit
		}
	}
	return fields, present
}

func appendHeader(b []byte, h http.Header, skip fieldSet) []byte {
	fields, _ := appendSortedFields(nil, h)
	return appendFields(b, fields, skip)
}

func appendFields(b []byte, fields []headerField, skip fieldSet, exclude ...string) []byte {
	for i := range fields {
		f := &fields[i]
		if skip&f.bit != 0 || f.bit&^(trailerPrefix|socketPrefix) == 0 && !isToken(f.key) || slices.Contains(exclude, f.key) {
			continue
		}
		for _, v := range f.values {
			b = appendSanitizedField(b, f.key, v)
		}
	}
	return b
}

// firstValue returns the first value of a field, or "" if there is none. canonicalKey must be canonical.
func firstValue(h http.Header, canonicalKey string) string {
	if values := h[canonicalKey]; len(values) > 0 {
		return values[0]
	}
	return ""
}

// appendSanitizedField appends a field to b. As in net/http, it trims the value and replaces line ends by spaces.
func appendSanitizedField(b []byte, key, value string) []byte {
	value = textproto.TrimString(value)
	if !isValidFieldValue(value) {
		value = strings.NewReplacer("\r", " ", "\n", " ").Replace(value)
	}
	return appendRawField(b, key, value)
}

func appendRawField(b []byte, key, value string) []byte {
	b = append(b, key...)
	b = append(b, ": "...)
	b = append(b, value...)
	return append(b, "\r\n"...)
}

// cachedDate is the most recent value of the Date field. It is used for at most one second.
var cachedDate atomic.Pointer[dateStamp]

type dateStamp struct {
	second int64
	text   string
}

func currentHTTPDate() string {
	t := time.Now()
	if s := cachedDate.Load(); s != nil && s.second == t.Unix() {
		return s.text
	}
	s := &dateStamp{t.Unix(), t.UTC().Format(http.TimeFormat)}
	cachedDate.Store(s)
	return s.text
}
