package enginetest

import (
	"errors"
	"io"
	"os"
	"path/filepath"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/testkit"
)

var fileCases = []testCase{
	{"SendFile between writes", func(b *testEnv) { testFileBetweenWrites(b, false) }},
	{"SendFile with TLS", func(b *testEnv) { testFileBetweenWrites(b, true) }},
	{"SendFile to a slow reader keeps little in memory", func(b *testEnv) { testFileToSlowReader(b, false) }},
	{"SendFile with TLS to a slow reader", func(b *testEnv) { testFileToSlowReader(b, true) }},
	{"SendFile of a file that is cut off", testFileTruncated},
}

const fileSize = 6 << 20

// newRandomFile creates a file with n bytes of the test pattern.
func (b *testEnv) newRandomFile(n int) (*os.File, string) {
	b.Helper()
	content := testPattern(n)
	f, err := os.Create(filepath.Join(b.TempDir(), "file"))
	if err == nil {
		_, err = f.Write(content)
	}
	b.requireNoError(err)
	b.Cleanup(func() { f.Close() })
	return f, string(content)
}

// serveFileAnswers starts a server that answers all input with answer. Loops with their own descriptor tables can't
// send files. On such loops, serveFileAnswers checks the error and returns nil.
func (b *testEnv) serveFileAnswers(encrypted bool, answer func(c *engine.Conn), changes ...with) *server {
	probe, _ := b.newRandomFile(100)
	sends := make(chan error, 1)
	s := b.startServer(&Script{Received: func(c *engine.Conn, in []byte) int {
		if in[0] == '?' {
			sends <- c.SendFile(probe, 0, 0)
		} else {
			answer(c)
		}
		return len(in)
	}}, append(changes, b.withLayers(false, encrypted))...)
	stream := s.dialStream(encrypted, false)
	_, err := io.WriteString(stream, "?")
	b.requireNoError(err)
	if err := testkit.Receive(b, sends, "an answer of SendFile"); errors.Is(err, errors.ErrUnsupported) {
		return nil
	} else if err != nil {
		b.Errorf("SendFile of nothing: %v", err)
	}
	return s
}

func testFileBetweenWrites(b *testEnv, encrypted bool) {
	f, content := b.newRandomFile(1 << 20)
	large := string(testPattern(64 << 10))
	offset, err := f.Seek(17, io.SeekStart)
	b.requireNoError(err)
	s := b.serveFileAnswers(encrypted, func(c *engine.Conn) {
		b.checkNoError(c.Ref().Send([]byte("posted")))
		own, err := os.Open(f.Name())
		if err != nil {
			b.Error(err)
			return
		}
		c.WriteString("head")
		errs := []error{
			c.SendFile(own, 0, -1), c.SendFile(own, 5, 0), c.SendFile(own, int64(len(content)), -1),
			own.Close(), // the connection uses a duplicate
		}
		before := c.UnsentAndDroppedBytes()
		c.Writev([]byte("mi"), []byte("ddle"))
		errs = append(errs, c.SendFile(f, 1000, 300000), c.SendFile(f, 7, 100))
		c.Write([]byte(large))
		errs = append(errs, c.SendFile(f, 20, 20000), c.SendFile(f, 1000000, 20000))
		c.WriteString("end")
		if got := c.UnsentAndDroppedBytes(); before < len(content) || got < len(content)+300000+len(large) {
			b.Errorf("Pending is %d and %d with files that wait", before, got)
		}
		b.checkNoError(errors.Join(errs...))
	})
	if s == nil {
		return
	}
	want := "head" + content + "middle" + content[1000:301000] + content[7:107] + large +
		content[20:20020] + content[1000000:1020000] + "end"
	for _, slow := range []bool{false, true} {
		stream := s.dialStream(encrypted, slow)
		for range 2 {
			_, err := io.WriteString(stream, "x")
			b.requireNoError(err)
			b.requireNoError(readAndCompare(stream, want+"posted"))
		}
	}
	if at, err := f.Seek(0, io.SeekCurrent); at != offset || err != nil {
		b.Errorf("the file's offset is %d, %v; want %d", at, err, offset)
	}
}

// testFileToSlowReader checks that reading pauses while a file waits for its reader, that memory
// stays bounded, and that Writable is called when almost all was sent.
func testFileToSlowReader(b *testEnv, encrypted bool) {
	f, content := b.newRandomFile(4 * fileSize)
	const high, low = 200 << 10, 100 << 10
	drained := make(chan int, 10)
	s := b.serveFileAnswers(encrypted, func(c *engine.Conn) {
		b.checkNoError(c.SendFile(f, 0, -1))
		if !c.IsPaused() {
			b.Error("not Paused with a file that waits")
		}
		if _, err := c.Write(make([]byte, 10)); err != nil { // files don't count against MaxUnsent
			b.Errorf("Write behind a file: %v", err)
		}
	}, limited(func(l *engine.Limits) { l.MaxUnsent, l.HighWater, l.LowWater = 1<<20, high, low }),
		func(cfg *engine.Config) { cfg.Drained = func(c *engine.Conn) { drained <- c.UnsentAndDroppedBytes() } })
	if s == nil {
		return
	}
	stream := s.dialStream(encrypted, true)
	_, err := io.WriteString(stream, "x")
	b.requireNoError(err)
	testkit.WaitFor(b, "it is not paused", func() bool { return s.Counters()[engine.Paused] == 1 })
	s2 := s.Counters()
	got, most := make([]byte, len(content)+10), int64(0)
	for n := 0; n < len(got); {
		m, err := io.ReadFull(stream, got[n:min(n+64<<10, len(got))])
		if n += m; err != nil {
			b.Fatalf("client: %d bytes, then %v", n, err)
		}
		most = max(most, s.Counters()[engine.Buffered])
	}
	if most-s2[engine.Buffered] > 300<<10 {
		b.Errorf("up to %d bytes of memory were held for a file", most)
	}
	b.checkNoError(compareBytes(got, append([]byte(content), make([]byte, 10)...)))
	if left := testkit.Receive(b, drained, "Writable"); left > low {
		b.Errorf("Writable while %d bytes are owed", left)
	}
}

func testFileTruncated(b *testEnv) {
	const left = 100 << 10
	f, content := b.newRandomFile(fileSize)
	s := b.serveFileAnswers(false, func(c *engine.Conn) {
		if err := c.SendFile(f, 1, fileSize); !errors.Is(err, engine.ErrShortFile) {
			b.Errorf("SendFile of more than there is: %v", err)
		}
		c.WriteString("head")
		b.checkNoError(c.SendFile(f, 0, fileSize))
		c.WriteString("tail")
		b.checkNoError(f.Truncate(left))
	})
	if s == nil {
		return
	}
	c := s.dial()
	c.Send("x")
	got, err := io.ReadAll(c)
	if err != nil && !testkit.IsReset(err) {
		b.Errorf("client: %v", err)
	}
	if want := "head" + content[:left]; len(got) > len(want) || string(got) != want[:len(got)] {
		b.Error(compareBytes(got, []byte(want)))
	}
	s.wantClosed(engine.ErrShortFile)
}
