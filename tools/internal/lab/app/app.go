// Package app has the protocols that compared servers speak, and asks a server whether it
// speaks one.
package app

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"
)

// The protocols that a server can be asked to speak.
const (
	// Echo answers with the bytes that came, as they come.
	Echo = "echo"
	// Lines answers each line, a message that ends in "\n", with itself.
	Lines = "lines"
	// Sink reads and discards, and ends when its client does. It sends heartbeats.
	Sink = "sink"
	// HTTP answers each HTTP/1.1 GET of "/" with status 200 and HelloText, with its
	// Content-Length. All other header fields but a Date stay the same.
	HTTP = "http"
	// Wait answers each line with itself, not before WaitTime has passed: it stands for a
	// handler that waits for something else.
	Wait = "wait"
	// Pow answers each line with itself, a space, and the smallest nonce for which the
	// SHA-256 of the line and the nonce starts with PowZeros zero bits, as 16 hexadecimal
	// digits; the nonce is hashed as 8 bytes in big-endian order. It stands for a handler
	// that computes.
	Pow = "pow"
	// Sha answers each line with as many hexadecimal digits of its SHA-256 as it is long,
	// at most 64, and a line end.
	Sha = "sha"
	// WebSocket answers each message of a WebSocket at "/" with itself, and sends one that
	// begins with "!" to all, without that. Its heartbeats are pings.
	WebSocket = "ws"
	// PubSub is publish/subscribe, by a protocol that the subject says. It answers PING. It
	// is not among Names: no server of ours is asked to speak it.
	PubSub = "pubsub"
)

// Names are all protocols, List the same for errors.
var Names = []string{Echo, Lines, Sink, HTTP, Wait, Pow, Sha, WebSocket}

// List names the protocols in errors.
const List = Echo + ", " + Lines + ", " + Sink + ", " + HTTP + ", " + Wait + ", " + Pow + ", " + Sha + " or " + WebSocket

const (
	// HelloText is the body of every HTTP answer.
	HelloText = "Hello, World!"
	// WaitTime is how long Wait waits.
	WaitTime = 10 * time.Millisecond
	// PowZeros is how many zero bits Pow asks for.
	PowZeros = 16
	// Heartbeat is the line by which a server checks whether its client is there, and
	// HeartbeatAnswer is the client's.
	Heartbeat       = "ping\n"
	HeartbeatAnswer = "pong\n"
	// Ping is the line of floods, as published.
	Ping = "ping\n"
)

// Message is what the load sends and expects; the zero value is a text of the workload's
// size, which comes back as it is.
type Message struct{ Text, Answer string }

// fixedMessages are those of apps whose messages are all the same. That of Pow takes 4,217 hashes:
// about as many as any message would on average with 12 bits, some 0.4 ms.
var fixedMessages = map[string]Message{
	Sink: {HeartbeatAnswer, Heartbeat},
	HTTP: {},
	Pow:  {"myriad 125\n", "myriad 125 0000000000001078\n"},
	Sha:  {Ping, "758d\n"},
}

// MessageFor is the message of an app.
func MessageFor(appName string) Message { return fixedMessages[appName] }

// HasMessageSize says whether the messages of an app have the workload's size.
func HasMessageSize(appName string) bool {
	_, fixed := fixedMessages[appName]
	return !fixed
}

// IsAppName says whether there is an app of this name.
func IsAppName(name string) bool { return slices.Contains(Names, name) }

// CheckServer has the server at the other end answer, and checks the answer. The caller sets the
// connection's deadline.
func CheckServer(conn net.Conn, appName string) error {
	// A port that nobody listens on can connect to itself.
	if conn.LocalAddr().String() == conn.RemoteAddr().String() {
		return errors.New("connection refused")
	}
	switch appName {
	case Sink:
		return checkSink(conn)
	case HTTP:
		return checkHTTPHello(conn)
	case PubSub:
		return checkPubSubPing(conn)
	}
	m := fixedMessages[appName]
	if m.Text == "" {
		m = Message{Ping, Ping}
	}
	conn, err := LineConn(conn, appName)
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := checkEchoedLines(conn, m); err != nil {
		return err
	}
	if took := time.Since(begin); appName == Wait && took < WaitTime { // which the load generator does not check
		return fmt.Errorf("ten lines were echoed after %v; expected at least %v", took, WaitTime)
	}
	return nil
}

// checkEchoedLines has a message answered ten times: a published server that is compared, too,
// answers every tenth line only.
func checkEchoedLines(conn net.Conn, m Message) error {
	const times = 10
	if _, err := io.WriteString(conn, strings.Repeat(m.Text, times)); err != nil {
		return err
	}
	want := strings.Repeat(m.Answer, times)
	got := make([]byte, len(want))
	if n, err := io.ReadFull(conn, got); err != nil {
		return fmt.Errorf("ten times %q was not answered but for %q: %w", m.Text, got[:n], err)
	}
	if string(got) != want {
		return fmt.Errorf("ten times %q was answered with %q; expected %q", m.Text, got, want)
	}
	return nil
}

// checkSink has a server take a line, and end with the client without a word but heartbeats.
func checkSink(conn net.Conn) error {
	if _, err := io.WriteString(conn, HeartbeatAnswer); err != nil {
		return err
	}
	half, ok := conn.(interface{ CloseWrite() error })
	if !ok {
		return fmt.Errorf("a connection of type %T; expected one that can be half-closed", conn)
	}
	if err := half.CloseWrite(); err != nil {
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

// checkPubSubPing has a server of publish/subscribe answer PING, behind its greeting if it has one.
func checkPubSubPing(conn net.Conn) error {
	if _, err := io.WriteString(conn, "PING\r\n"); err != nil {
		return err
	}
	lines := bufio.NewReaderSize(conn, 4096)
	for range 2 {
		switch line, err := lines.ReadString('\n'); {
		case err != nil:
			return fmt.Errorf("PING was answered with %q: %w", line, err)
		case line == "+PONG\r\n" || line == "PONG\r\n":
			return nil
		case !strings.HasPrefix(line, "INFO "):
			return fmt.Errorf("PING was answered with %q; expected PONG", line)
		}
	}
	return errors.New("PING was not answered with PONG")
}

// checkHTTPHello checks what the load generator does not: whether the body is HelloText.
func checkHTTPHello(conn net.Conn) error {
	if _, err := fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %v\r\n\r\n", conn.RemoteAddr()); err != nil {
		return err
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return fmt.Errorf("a GET was not answered: %w", err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, int64(len(HelloText)+1)))
	if err != nil {
		return fmt.Errorf("a GET was not answered: %w", err)
	}
	if answer.StatusCode != http.StatusOK || string(text) != HelloText {
		return fmt.Errorf("a GET was answered with %s and %q; expected 200 and %q", answer.Status, text, HelloText)
	}
	return nil
}
