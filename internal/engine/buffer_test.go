package engine

import (
	"bytes"
	"testing"
)

// A queue that is never empty must not grow, nor copy each byte more than about once.
func TestBufferSkipReusesRoom(t *testing.T) {
	b := Buffer{bytes: make([]byte, 0, 1024)}
	piece := bytes.Repeat([]byte("x"), 100)
	appendTo(&b, piece)
	copied := 0
	for range 10_000 {
		appendTo(&b, piece)
		off := b.start
		b.discardFrontBytes(len(piece))
		if b.start < off {
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

func TestFreeListIsBounded(t *testing.T) {
	var f FreeList
	big := &Buffer{bytes: make([]byte, 0, maxPooledSize+1)}
	f.Put(big)
	if got := f.GetOrNew(0); got == big {
		t.Errorf("kept a buffer of %d bytes, the bound is %d", maxPooledSize+1, maxPooledSize)
	}
	for _, size := range []int{maxPooledSize, minBufferSize} {
		most := maxFreeBytes / size
		for range most + 10 {
			f.Put(&Buffer{bytes: make([]byte, 0, size)})
		}
		if n := len(f.smallOrLargeStackFor(size).free); n != most || f.freeBytes != maxFreeBytes {
			t.Errorf("holds %d buffers of %d bytes, %d in all; the bound is %d", n, size, f.freeBytes, maxFreeBytes)
		}
		for range most {
			f.GetOrNew(size)
		}
		if n := len(f.smallOrLargeStackFor(size).free); n != 0 || f.freeBytes != 0 {
			t.Errorf("holds %d buffers of %d bytes when all are in use", n, f.freeBytes)
		}
	}
}

// useBuffers takes n buffers at the same time, writes p into each, and returns them.
func useBuffers(f *FreeList, n int, p []byte) {
	taken := make([]*Buffer, n)
	for i := range taken {
		taken[i] = f.GetOrNew(len(p))
		appendTo(taken[i], p)
	}
	for _, b := range taken {
		f.Put(b)
	}
}

// Buffers of a burst are freed by the second FreeIdleBuffers, not by the first, because they were in use
// before. The most recently used buffers stay.
func TestFreeListForgetsABurst(t *testing.T) {
	for name, size := range map[string]int{"small": 1, "large": maxPooledSize} {
		var f FreeList
		useBuffers(&f, maxFreeBytes/max(size, minBufferSize), make([]byte, size))
		list := f.smallOrLargeStackFor(size)
		burst, last := len(list.free), list.free[len(list.free)-1]
		if !f.NeedsTrim() || f.freeBytes < maxFreeBytes/2 {
			t.Fatalf("%s: a burst has left %d bytes, spare: %v", name, f.freeBytes, f.NeedsTrim())
		}
		if f.FreeIdleBuffers(); len(list.free) != burst {
			t.Errorf("%s: %d of %d buffers are left that were in use before the first look, want all", name, len(list.free), burst)
		}
		f.FreeIdleBuffers()
		sum := 0
		for _, b := range list.free {
			sum += cap(b.bytes)
		}
		if f.NeedsTrim() || f.freeBytes > keptFreeBytes || f.freeBytes != sum || cap(list.free) > 2*keptFreeBytes/minBufferSize {
			t.Errorf("%s: holds %d bytes in %d buffers of %d in all, room for %d; the bound is %d bytes",
				name, f.freeBytes, len(list.free), sum, cap(list.free), keptFreeBytes)
		}
		if n := len(list.free); size == 1 && (n != keptFreeBytes/minBufferSize || list.free[n-1] != last) {
			t.Errorf("%d small buffers are left, want %d, and the one that was used last", n, keptFreeBytes/minBufferSize)
		}
	}
}

// A load that repeatedly uses many buffers between two trims must not allocate new ones.
func TestFreeListKeepsWhatIsUsed(t *testing.T) {
	var f FreeList
	const many = 8 * keptFreeBytes / minBufferSize
	useBuffers(&f, many, []byte("x"))
	taken := make([]*Buffer, many)
	if n := testing.AllocsPerRun(100, func() {
		for i := range taken {
			taken[i] = f.GetOrNew(0)
		}
		for _, b := range taken {
			f.Put(b)
		}
		f.FreeIdleBuffers()
	}); n != 0 {
		t.Errorf("%v allocations between two looks, want none", n)
	}
	// From now on half of them are used: only the other half may be freed.
	for range 3 {
		useBuffers(&f, many/2, []byte("x"))
		f.FreeIdleBuffers()
	}
	if n := len(f.small.free); n != many/2 {
		t.Errorf("%d buffers are left of a load that uses %d at the same time", n, many/2)
	}
}

// A small request must not get a large buffer, and a growing one gets a pooled buffer.
func TestLargeBuffersAreForThoseWhoNeedThem(t *testing.T) {
	var f FreeList
	h := &Runtime{Buffers: &f, Counters: new(Counters)}
	large := h.getOrNewCountedBuffer(maxPooledSize)
	room := &large.bytes[:1][0]
	h.freeCountedBuffer(large)
	b := h.getOrNewCountedBuffer(10)
	if cap(b.bytes) > smallBufferSize {
		t.Fatalf("10 bytes have a buffer of %d", cap(b.bytes))
	}
	h.appendToInputBuffer(b, []byte("0123456789"))
	h.appendToInputBuffer(b, make([]byte, maxPooledSize-10))
	if &b.bytes[0] != room || string(b.bytes[:10]) != "0123456789" || b.Len() != maxPooledSize {
		t.Errorf("a buffer that grew has not the room that was there, or not its bytes")
	}
	if n := h.Counters.Get(Buffered); n != int64(cap(b.bytes)) {
		t.Errorf("%d bytes are counted, %d are held", n, cap(b.bytes))
	}
}

func appendTo(b *Buffer, p []byte) {
	h := Runtime{Buffers: &FreeList{}, Counters: &Counters{}}
	h.appendToInputBuffer(b, p)
}
