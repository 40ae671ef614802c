package web

import (
	"bytes"
	"compress/flate"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/myriad-go/myriad/tcp"
)

// This file implements permessage-deflate (RFC 7692) without context takeover.

// acceptsDeflate reports whether the client offers a form of permessage-deflate that this package supports.
func acceptsDeflate(offers []string) bool {
	for e := range strings.SplitSeq(strings.Join(offers, ","), ",") {
		name, parameters, _ := strings.Cut(e, ";")
		if strings.TrimSpace(name) != "permessage-deflate" {
			continue
		}
		fits := true
		for p := range strings.SplitSeq(parameters, ";") {
			switch name, value, _ := strings.Cut(strings.TrimSpace(p), "="); name {
			case "", "server_no_context_takeover", "client_no_context_takeover", "client_max_window_bits":
			case "server_max_window_bits":
				// compress/flate needs the largest window.
				fits = fits && strings.Trim(value, `"`) == "15"
			default:
				fits = false
			}
		}
		if fits {
			return true
		}
	}
	return false
}

// isSupportedDeflateResponse reports whether a server has accepted permessage-deflate without context takeover.
func isSupportedDeflateResponse(extensions string) bool {
	name, parameters, _ := strings.Cut(extensions, ";")
	separate := false
	for p := range strings.SplitSeq(parameters, ";") {
		switch name, _, _ := strings.Cut(strings.TrimSpace(p), "="); name {
		case "server_no_context_takeover":
			separate = true
		case "client_no_context_takeover", "server_max_window_bits":
		default:
			return false
		}
	}
	return separate && strings.TrimSpace(name) == "permessage-deflate" && !strings.Contains(extensions, ",")
}

const deflateExtension = "permessage-deflate; server_no_context_takeover; client_no_context_takeover"

// deflateTail is appended to each message before decompression. It consists of the four bytes that the sender has
// omitted, and an empty final block.
const deflateTail = "\x00\x00\xff\xff\x01\x00\x00\xff\xff"

var deflateWriters = sync.Pool{New: func() any {
	w, err := flate.NewWriter(nil, flate.BestSpeed)
	if err != nil {
		panic(err)
	}
	return w
}}

func compress(message []byte) []byte {
	var out bytes.Buffer
	w := deflateWriters.Get().(*flate.Writer)
	defer deflateWriters.Put(w)
	w.Reset(&out)
	_, _ = w.Write(message) // a bytes.Buffer does not fail
	_ = w.Flush()
	return bytes.TrimSuffix(out.Bytes(), []byte(deflateTail[:4]))
}

func compressFrame(kind Kind, message []byte) []byte {
	p := compress(message)
	return appendFrame(make([]byte, 0, len(p)+10), byte(kind)|bitDeflate, p)
}

var (
	inflateReaders    = sync.Pool{New: func() any { return flate.NewReader(nil) }}
	decompressBuffers = sync.Pool{New: func() any { return new([]byte) }}
)

// decompressToPooled decompresses the message p. It fails if the result exceeds maxBytes bytes. It may overwrite the
// bytes between len(p) and cap(p). Pass the result to recycleDecompressed after use.
func decompressToPooled(p []byte, maxBytes int) ([]byte, error) {
	r := inflateReaders.Get().(io.ReadCloser)
	defer inflateReaders.Put(r)
	if err := r.(flate.Resetter).Reset(bytes.NewReader(append(p, deflateTail...)), nil); err != nil {
		return nil, err
	}
	buf := decompressBuffers.Get().(*[]byte)
	out := bytes.NewBuffer((*buf)[:0])
	n, err := out.ReadFrom(io.LimitReader(r, int64(maxBytes)+1))
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		return nil, &CloseError{CloseInvalidData, "the message can't be decompressed"}
	case n > int64(maxBytes):
		return nil, &CloseError{CloseTooLarge, fmt.Sprintf("the message is larger than %d bytes", maxBytes)}
	}
	return out.Bytes(), nil
}

// maxPooledBuffer is the maximum capacity in bytes of a buffer that is kept for reuse.
const maxPooledBuffer = 1 << 20

func recycleDecompressed(p []byte) {
	if cap(p) <= maxPooledBuffer {
		decompressBuffers.Put(&p)
	}
}

// Group is a set of WebSockets that receive the same messages. A Group encodes each message only once. For sockets with
// compression, it also compresses each message of 1 KiB or more only once.
//
// The zero value is an empty group. A Group is safe for concurrent use. A Group with one socket takes 120 bytes.
type Group struct {
	plain, deflate tcp.Group
	dialed         tcp.Group // these sockets get masked frames
}

// Add adds a socket to the group.
func (g *Group) Add(s Socket) { g.groupFor(s).Add(s.Ref()) }

// Remove removes a socket; see tcp.Group.Remove.
func (g *Group) Remove(s Socket) { g.groupFor(s).Remove(s.Ref()) }

// Len returns the number of sockets in the group. Some of these sockets may have closed.
func (g *Group) Len() int { return g.plain.Len() + g.deflate.Len() + g.dialed.Len() }

func (g *Group) groupFor(s Socket) *tcp.Group {
	switch {
	case s.negotiated.client:
		return &g.dialed
	case s.negotiated.deflate:
		return &g.deflate
	}
	return &g.plain
}

// defaultMinCompressed is the minimum size in bytes of a message that is compressed by default.
const defaultMinCompressed = 1 << 10

// CompressedFrame encodes and compresses a message that a server sends. Send the result only to clients that accept
// compressed messages; see [Socket.Compressed]. CompressedFrame does not compress messages below 1 KiB.
func CompressedFrame(kind Kind, message []byte) []byte {
	if len(message) < defaultMinCompressed {
		return Frame(kind, message)
	}
	return compressFrame(kind, message)
}

// Broadcast sends a message to all sockets in the group; see tcp.Group.Broadcast.
func (g *Group) Broadcast(kind Kind, message []byte) (sent, full int) {
	return g.encodeAndSend(kind, message, (*tcp.Group).Broadcast)
}

// SendLatest sends a message to all sockets in the group. If an earlier message of SendLatest is still unsent for a
// socket, the new message replaces it; see tcp.Group.SendLatest.
func (g *Group) SendLatest(kind Kind, message []byte) (sent, full int) {
	return g.encodeAndSend(kind, message, (*tcp.Group).SendLatest)
}

func (g *Group) encodeAndSend(kind Kind, message []byte, send func(*tcp.Group, []byte) (int, int)) (sent, full int) {
	frame := Frame(kind, message)
	if g.plain.Len() > 0 {
		sent, full = send(&g.plain, frame)
	}
	if g.dialed.Len() > 0 {
		s, f := send(&g.dialed, MaskFrame(frame))
		sent, full = sent+s, full+f
	}
	if g.deflate.Len() > 0 {
		if len(message) >= defaultMinCompressed {
			frame = compressFrame(kind, message)
		}
		s, f := send(&g.deflate, frame)
		sent, full = sent+s, full+f
	}
	return sent, full
}
