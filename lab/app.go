package lab

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// The protocols that a server can be asked to speak.
const (
	// Echo answers with the bytes that came, as they come.
	Echo = "echo"
	// Lines answers each line, a message that ends in "\n", with itself.
	Lines = "lines"
	// Sink reads and throws away, and ends when its client does.
	Sink = "sink"
	// HTTP answers each HTTP/1.1 GET of "/" with status 200 and the text
	// "Hello, World!", with its Content-Length. Other fields are as the
	// server likes; all but a Date stay the same.
	HTTP = "http"
	// Wait answers each line with itself, not before 10 ms have passed: it
	// stands for a handler that waits for something else.
	Wait = "wait"
	// Pow answers each line with itself, a space, and the smallest nonce for
	// which the SHA-256 of the line and the nonce starts with 16 zero bits,
	// as 16 hexadecimal digits; the nonce is hashed as 8 bytes in big-endian
	// order. It stands for a handler that computes.
	Pow = "pow"
	// Sha answers each line with as many hexadecimal digits of its SHA-256 as it
	// is long, at most 64, and a line's end. The published server that computes
	// for each line hashed it, wrote the hash in hexadecimal, and sent back the
	// line: these answers are as long, but can't be had without the hash.
	Sha = "sha"
)

// appList names them in errors.
const appList = Echo + ", " + Lines + ", " + Sink + ", " + HTTP + ", " + Wait + ", " + Pow + " or " + Sha

// app is how a protocol is asked for and loaded.
type app struct {
	// ask has the server at the other end answer, and checks the answer.
	ask func(conn net.Conn) error
	// load are the flags of the load generator that say what to send and to
	// expect. Where there are none it sends messages of the workload's size.
	load []string
}

var apps = map[string]app{
	Echo:  {ask: askEcho},
	Lines: {ask: askEcho},
	Sink:  {ask: askSink, load: []string{"--unprompted", "--message", HeartbeatAnswer, "--answer", Heartbeat}},
	HTTP:  {ask: askHTTP, load: []string{"--http"}},
	Wait:  {ask: askWait},
	Pow:   {ask: askPow, load: []string{"--message", powMessage, "--answer", powAnswer}},
	Sha:   {ask: askSha, load: []string{"--message", shaMessage, "--answer", shaAnswer}},
}

func isApp(name string) bool {
	_, ok := apps[name]
	return ok
}

// sized says whether the messages of an app have the workload's size.
func sized(name string) bool { return apps[name].load == nil }

// helloText is the text of every HTTP answer.
const helloText = "Hello, World!"

// waitTime is how long Wait waits.
const waitTime = 10 * time.Millisecond

// The message for Pow and its answer. It takes 4,217 hashes: about as many as
// any message would on average with 12 bits, some 0.4 ms.
const (
	powZeros   = 16
	powMessage = "myriad 125\n"
	powAnswer  = "myriad 125 0000000000001078\n"
)

// The message for Sha, which is that of floods, and its answer.
const (
	shaMessage = "ping\n"
	shaAnswer  = "758d\n"
)

// ask has a server answer once over a new connection, and checks the answer.
func ask(conn net.Conn, name string) error {
	// A port that nobody listens on can connect to itself.
	if conn.LocalAddr().String() == conn.RemoteAddr().String() {
		return errors.New("connection refused")
	}
	if err := conn.SetDeadline(time.Now().Add(probeBound)); err != nil {
		return err
	}
	return apps[name].ask(conn)
}

// askEcho has lines echoed.
func askEcho(conn net.Conn) error { return askTen(conn, "ping\n", "ping\n") }

// askSha has lines hashed.
func askSha(conn net.Conn) error { return askTen(conn, shaMessage, shaAnswer) }

// askPow has a server find proofs of work: those that the load asks for.
func askPow(conn net.Conn) error { return askTen(conn, powMessage, powAnswer) }

// askTen has a message answered ten times. There are ten because a server that
// others have published, and that is compared too, answers every tenth line only.
func askTen(conn net.Conn, message, answer string) error {
	const times = 10
	if _, err := io.WriteString(conn, strings.Repeat(message, times)); err != nil {
		return err
	}
	want := strings.Repeat(answer, times)
	got := make([]byte, len(want))
	if n, err := io.ReadFull(conn, got); err != nil {
		return fmt.Errorf("ten times %q was not answered but for %q: %w", message, got[:n], err)
	}
	if string(got) != want {
		return fmt.Errorf("ten times %q was answered with %q; expected %q", message, got, want)
	}
	return nil
}

// askSink has a server take a line, and end with us without a word but
// heartbeats.
func askSink(conn net.Conn) error {
	if _, err := io.WriteString(conn, HeartbeatAnswer); err != nil {
		return err
	}
	end, ok := conn.(interface{ CloseWrite() error })
	if !ok {
		return fmt.Errorf("a connection of type %T; expected one that can be shut", conn)
	}
	if err := end.CloseWrite(); err != nil {
		return err
	}
	got, err := io.ReadAll(io.LimitReader(conn, 1024))
	if err != nil {
		return fmt.Errorf("the end was not answered with the end: %w", err)
	}
	if rest := strings.ReplaceAll(string(got), Heartbeat, ""); rest != "" {
		return fmt.Errorf("a line was answered with %q; expected nothing but %q", rest, Heartbeat)
	}
	return nil
}

// askWait looks at what the load generator does not: whether the server waits.
func askWait(conn net.Conn) error {
	begin := time.Now()
	if err := askEcho(conn); err != nil {
		return err
	}
	if took := time.Since(begin); took < waitTime {
		return fmt.Errorf("ten lines were echoed after %v; expected at least %v", took, waitTime)
	}
	return nil
}

// askHTTP looks at what the load generator does not: whether the text is the
// one that every server sends.
func askHTTP(conn net.Conn) error {
	if _, err := fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %v\r\n\r\n", conn.RemoteAddr()); err != nil {
		return err
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return fmt.Errorf("a GET was not answered: %w", err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, int64(len(helloText)+1)))
	if err != nil {
		return fmt.Errorf("a GET was not answered: %w", err)
	}
	if answer.StatusCode != http.StatusOK || string(text) != helloText {
		return fmt.Errorf("a GET was answered with %s and %q; expected 200 and %q", answer.Status, text, helloText)
	}
	return nil
}
