package baseline

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net"
	"time"

	"github.com/myriad-go/myriad/tools/internal/lab/app"
	"github.com/myriad-go/myriad/tools/internal/proof"
)

// lineHandlers maps each app with a line protocol to the function that computes the answer to a line. Lines and answers
// end with a newline. An answer may share memory with its line.
var lineHandlers = map[string]func(line []byte) []byte{
	app.Lines: func(line []byte) []byte { return line },
	app.Wait: func(line []byte) []byte {
		time.Sleep(app.WaitTime)
		return line
	},
	app.Pow: func(line []byte) []byte { return proof.AppendLineWithProof(nil, line[:len(line)-1], app.PowZeros) },
	app.Sha: func(line []byte) []byte {
		sum := sha256.Sum256(line[:len(line)-1])
		text := hex.AppendEncode(make([]byte, 0, 2*len(sum)+1), sum[:])
		return append(text[:min(len(line)-1, len(text))], '\n')
	},
}

// newConnHandlerForApp returns a function that serves one connection until an error occurs. The function's parameter
// buffer is the size of the input buffer in bytes.
func newConnHandlerForApp(o Options) func(conn net.Conn, buffer int) {
	switch o.App {
	case app.Echo:
		return echoUntilError
	case app.Sink:
		return discardUntilError
	}
	return func(conn net.Conn, buffer int) {
		var out io.Writer = conn // unbuffered: each answer is written separately
		if o.Flush == FlushTenth {
			out = &flushEveryTenthWriter{out: bufio.NewWriterSize(conn, buffer)}
		}
		answerLinesUntilError(bufio.NewReaderSize(conn, buffer), lineHandlers[o.App], out)
	}
}

func echoUntilError(conn net.Conn, buffer int) {
	buf := make([]byte, buffer)
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return
		}
		if _, err := conn.Write(buf[:n]); err != nil {
			return
		}
	}
}

func discardUntilError(conn net.Conn, buffer int) {
	buf := make([]byte, buffer)
	for {
		if _, err := conn.Read(buf); err != nil {
			return
		}
	}
}

func answerLinesUntilError(in *bufio.Reader, answer func(line []byte) []byte, out io.Writer) {
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return
		}
		if _, err := out.Write(answer(line)); err != nil {
			return
		}
	}
}

// flushEveryTenthWriter is a buffered writer that flushes after every tenth Write, as FlushTenth requires.
type flushEveryTenthWriter struct {
	out    *bufio.Writer
	writes int
}

func (w *flushEveryTenthWriter) Write(p []byte) (int, error) {
	const every = 10
	n, err := w.out.Write(p)
	if w.writes++; err == nil && w.writes%every == 0 {
		err = w.out.Flush()
	}
	return n, err
}
