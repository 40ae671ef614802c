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
			appendTo(&b, []byte{next})
			next++
		}
		appendTo(&b, []byte{next})
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
	appendTo(&b, piece)
	copied := 0
	for range 10_000 {
		appendTo(&b, piece)
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
	appendTo(&b, make([]byte, 100))
	b.skip(100)
	if b.off != 0 || b.Len() != 0 || cap(b.bytes) != 1024 {
		t.Errorf("empty buffer has offset %d, length %d, room %d; want 0, 0, 1024", b.off, b.Len(), cap(b.bytes))
	}
}

func TestFreeListLastInFirstOut(t *testing.T) {
	var f FreeList
	a, b := f.Get(0), f.Get(0)
	appendTo(a, []byte("left over"))
	f.Put(b)
	f.Put(a)
	if got := f.Get(0); got != a {
		t.Error("Get did not give the buffer that came back last")
	} else if got.Len() != 0 {
		t.Errorf("a buffer that came back still has %q in it", got.Bytes())
	}
}

func TestFreeListIsBounded(t *testing.T) {
	var f FreeList
	big := &Buffer{bytes: make([]byte, 0, keepSize+1)}
	f.Put(big)
	if got := f.Get(0); got == big {
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
			f.Get(0)
		}
		if len(f.free) != 0 || f.held != 0 {
			t.Errorf("holds %d buffers of %d bytes when all are in use", len(f.free), f.held)
		}
	}
}

// use takes n buffers at the same time, puts bytes into them and gives them back.
func use(f *FreeList, n int, p []byte) {
	taken := make([]*Buffer, n)
	for i := range taken {
		taken[i] = f.Get(0)
		appendTo(taken[i], p)
	}
	for _, b := range taken {
		f.Put(b)
	}
}

// What a burst has left goes at the second look, and not at the first: there it was in
// use. Those that are kept are the ones that were used last.
func TestFreeListForgetsABurst(t *testing.T) {
	for name, size := range map[string]int{"small": 1, "large": keepSize} {
		var f FreeList
		use(&f, keepBytes/max(size, startSize), make([]byte, size))
		burst, last := len(f.free), f.free[len(f.free)-1]
		if !f.Spare() || f.held < keepBytes/2 {
			t.Fatalf("%s: a burst has left %d bytes, spare: %v", name, f.held, f.Spare())
		}
		if f.Trim(); len(f.free) != burst {
			t.Errorf("%s: %d of %d buffers are left that were in use before the first look, want all", name, len(f.free), burst)
		}
		f.Trim()
		sum := 0
		for _, b := range f.free {
			sum += cap(b.bytes)
		}
		if f.Spare() || f.held > restBytes || f.held != sum || cap(f.free) > 2*restBytes/startSize {
			t.Errorf("%s: holds %d bytes in %d buffers of %d in all, room for %d; the bound is %d bytes",
				name, f.held, len(f.free), sum, cap(f.free), restBytes)
		}
		if n := len(f.free); size == 1 && (n != restBytes/startSize || f.free[n-1] != last) {
			t.Errorf("%d small buffers are left, want %d, and the one that was used last", n, restBytes/startSize)
		}
	}
}

// A load that uses many buffers at the same time between any two looks makes none anew.
func TestFreeListKeepsWhatIsUsed(t *testing.T) {
	var f FreeList
	const many = 8 * restBytes / startSize
	use(&f, many, []byte("x"))
	taken := make([]*Buffer, many)
	if n := testing.AllocsPerRun(100, func() {
		for i := range taken {
			taken[i] = f.Get(0)
		}
		for _, b := range taken {
			f.Put(b)
		}
		f.Trim()
	}); n != 0 {
		t.Errorf("%v allocations between two looks, want none", n)
	}
	// Half of them are used from now on: the other half goes, and no more.
	for range 3 {
		use(&f, many/2, []byte("x"))
		f.Trim()
	}
	if len(f.free) != many/2 {
		t.Errorf("%d buffers are left of a load that uses %d at the same time", len(f.free), many/2)
	}
}

func TestSharedBuffers(t *testing.T) {
	var s SharedBuffers
	b := s.Get(0)
	appendTo(b, []byte("left over"))
	s.Put(b)
	s.Put(&Buffer{bytes: make([]byte, 0, keepSize+1)})
	for range 10 {
		got := s.Get(0)
		if got.Len() != 0 {
			t.Fatalf("a buffer that came back still has %q in it", got.Bytes())
		}
		if cap(got.bytes) > keepSize {
			t.Fatalf("kept a buffer of %d bytes, the bound is %d", cap(got.bytes), keepSize)
		}
	}
}

// appendTo appends, as a host does.
func appendTo(b *Buffer, p []byte) {
	h := Host{Counters: &Counters{}}
	h.append(b, p)
}
