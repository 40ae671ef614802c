package engine

import (
	"bytes"
	"testing"
)

func TestBufferKeepsOrder(t *testing.T) {
	var b Buffer
	next, want := byte(0), byte(0)
	for round := range 2000 {
		for range round % 13 {
			b.append([]byte{next})
			next++
		}
		b.appendString(string([]byte{next}))
		next++
		n := min(b.Len(), round%17)
		for i, got := range b.Bytes()[:n] {
			if got != want {
				t.Fatalf("round %d: byte %d is %d, want %d", round, i, got, want)
			}
			want++
		}
		b.skip(n)
		if b.Len() != int(next-want) {
			t.Fatalf("round %d: %d bytes left, want %d", round, b.Len(), next-want)
		}
	}
}

// A queue that never empties must not creep through memory, nor copy each byte
// more than about once.
func TestBufferSkipReusesRoom(t *testing.T) {
	b := Buffer{bytes: make([]byte, 0, 1024)}
	piece := bytes.Repeat([]byte("x"), 100)
	b.append(piece)
	copied := 0
	for range 10_000 {
		b.append(piece)
		off := b.off
		b.skip(len(piece))
		if b.off < off {
			copied += b.Len()
		}
	}
	if b.Len() != len(piece) {
		t.Errorf("%d bytes left, want %d", b.Len(), len(piece))
	}
	if cap(b.bytes) != 1024 {
		t.Errorf("a queue of at most 200 bytes grew to %d", cap(b.bytes))
	}
	if most := 10_000 * len(piece); copied > most {
		t.Errorf("copied %d bytes for %d that went through", copied, most)
	}
}

func TestBufferSkipAllStartsOver(t *testing.T) {
	b := Buffer{bytes: make([]byte, 0, 1024)}
	b.append(make([]byte, 100))
	b.skip(100)
	if b.off != 0 || b.Len() != 0 || cap(b.bytes) != 1024 {
		t.Errorf("empty buffer has offset %d, length %d, room %d; want 0, 0, 1024", b.off, b.Len(), cap(b.bytes))
	}
}

func TestFreeListLastInFirstOut(t *testing.T) {
	var f FreeList
	a, b := f.Get(), f.Get()
	a.append([]byte("left over"))
	f.Put(b)
	f.Put(a)
	if got := f.Get(); got != a {
		t.Error("Get did not give the buffer that came back last")
	} else if got.Len() != 0 {
		t.Errorf("a buffer that came back still has %q in it", got.Bytes())
	}
}

func TestFreeListIsBounded(t *testing.T) {
	var f FreeList
	big := &Buffer{bytes: make([]byte, 0, keepSize+1)}
	f.Put(big)
	if got := f.Get(); got == big {
		t.Errorf("kept a buffer of %d bytes, the bound is %d", keepSize+1, keepSize)
	}
	for _, size := range []int{keepSize, startSize} {
		most := keepBytes / size
		for range most + 10 {
			f.Put(&Buffer{bytes: make([]byte, 0, size)})
		}
		if len(f.free) != most || f.held != keepBytes {
			t.Errorf("holds %d buffers of %d bytes, %d in all; the bound is %d", len(f.free), size, f.held, keepBytes)
		}
		for range most {
			f.Get()
		}
		if len(f.free) != 0 || f.held != 0 {
			t.Errorf("holds %d buffers of %d bytes when all are in use", len(f.free), f.held)
		}
	}
}

func TestSharedBuffers(t *testing.T) {
	var s SharedBuffers
	b := s.Get()
	b.append([]byte("left over"))
	s.Put(b)
	s.Put(&Buffer{bytes: make([]byte, 0, keepSize+1)})
	for range 10 {
		got := s.Get()
		if got.Len() != 0 {
			t.Fatalf("a buffer that came back still has %q in it", got.Bytes())
		}
		if cap(got.bytes) > keepSize {
			t.Fatalf("kept a buffer of %d bytes, the bound is %d", cap(got.bytes), keepSize)
		}
	}
}
