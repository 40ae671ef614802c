// Package app defines the protocols ("apps") of the compared servers. It checks whether a server supports an app, and
// implements the app Web for net/http.
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

// Names of the protocols ("apps") that a server can support.
const (
	// Echo returns all bytes as they arrive.
	Echo = "echo"
	// Lines echoes each line. A line is a message that ends in "\n".
	Lines = "lines"
	// Sink discards all input, and may send heartbeats. When the client closes, the server closes, too.
	Sink = "sink"
	// HTTP answers each HTTP/1.1 GET of "/" with status 200, a Content-Length and HelloText. Apart from Date, all
	// header fields are constant.
	HTTP = "http"
	// Web is HTTP with more resources, which NewWebHandler defines. It answers "/" in the same way as HTTP.
	Web = "web"
	// Wait echoes each line after WaitTime. It represents a handler that waits for another service.
	Wait = "wait"
	// Pow answers each line with the line and a proof of work with PowZeros zero bits; see package proof. It represents
	// a handler that needs processor time.
	Pow = "pow"
	// Sha answers each line with the hexadecimal SHA-256 of the line, cut to the line's length, and a line end.
	Sha = "sha"
	// WebSocket serves a WebSocket at "/" and echoes each message. If a message begins with "!", the server broadcasts
	// the rest of the message instead. Its heartbeats are pings.
	WebSocket = "ws"
	// PubSub is publish/subscribe in the compared server's own protocol, such as Redis's. The server must answer PING.
	PubSub = "pubsub"
)

var Names = []string{Echo, Lines, Sink, HTTP, Web, Wait, Pow, Sha, WebSocket}

// List contains the elements of Names as one text, for error messages.
const List = Echo + ", " + Lines + ", " + Sink + ", " + HTTP + ", " + Web + ", " + Wait + ", " + Pow + ", " + Sha + " or " + WebSocket

const (
	// HelloText is the body of each answer of the app HTTP.
	HelloText = "Hello, World!"
	// WaitTime is the delay of the app Wait.
	WaitTime = 10 * time.Millisecond
	// PowZeros is the number of zero bits that the app Pow requires.
	PowZeros = 16
	// Heartbeat is the line that a server sends to probe a client. HeartbeatAnswer is the line that the client returns.
	Heartbeat       = "ping\n"
	HeartbeatAnswer = "pong\n"
	// Ping is the line that flooding connections send, as in a published benchmark with tcpkali.
	Ping = "ping\n"
)

// Message is a message to a server and the answer that the server must return. If both are "", the load generator
// chooses the message and checks the answer by its own rules.
type Message struct{ Text, Answer string }

// fixedMessages contains the message of each app that ignores the workload's message size.
var fixedMessages = map[string]Message{
	Sink: {HeartbeatAnswer, Heartbeat},
	HTTP: {},
	Web:  {},
	Pow:  {"myriad 125\n", "myriad 125 0000000000001078\n"},
	Sha:  {Ping, "758d\n"},
}

func FixedMessageFor(appName string) Message { return fixedMessages[appName] }

// UsesWorkloadMessageSize reports whether the app's messages have the size that the workload specifies.
func UsesWorkloadMessageSize(appName string) bool {
	_, fixed := fixedMessages[appName]
	return !fixed
}

// IsHTTP reports whether the app is HTTP or Web.
func IsHTTP(appName string) bool { return appName == HTTP || appName == Web }

func IsAppName(name string) bool { return slices.Contains(Names, name) }

// CheckServerSpeaksApp exchanges messages on conn and returns an error if the server does not support the app. The
// caller must set a deadline on conn first.
func CheckServerSpeaksApp(conn net.Conn, appName string) error {
	// If no process listens on a port, a connection to the port can connect to itself.
	if conn.LocalAddr().String() == conn.RemoteAddr().String() {
		return errors.New("connection refused")
	}
	switch appName {
	case Sink:
		return checkSinkClosesWithClient(conn)
	case HTTP, Web:
		return checkHTTPHello(conn)
	case PubSub:
		return checkPubSubPing(conn)
	}
	m := fixedMessages[appName]
	if m.Text == "" {
		m = Message{Ping, Ping}
	}
	conn, err := ConnForLines(conn, appName)
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := sendTenAndCheckAnswers(conn, m); err != nil {
		return err
	}
	if took := time.Since(begin); appName == Wait && took < WaitTime { // the load generator does not check the delay
		return fmt.Errorf("ten lines were echoed after %v; expected at least %v", took, WaitTime)
	}
	return nil
}

func sendTenAndCheckAnswers(conn net.Conn, m Message) error {
	const times = 10 // a compared server flushes only after every tenth answer
	if _, err := io.WriteString(conn, strings.Repeat(m.Text, times)); err != nil {
		return err
	}
	want := strings.Repeat(m.Answer, times)
	got := make([]byte, len(want))
	if n, err := io.ReadFull(conn, got); err != nil {
		return fmt.Errorf("incomplete answer to ten times %q: %q: %w", m.Text, got[:n], err)
	}
	if string(got) != want {
		return fmt.Errorf("answer to ten times %q is %q; expected %q", m.Text, got, want)
	}
	return nil
}

func checkSinkClosesWithClient(conn net.Conn) error {
	if _, err := io.WriteString(conn, HeartbeatAnswer); err != nil {
		return err
	}
	half, ok := conn.(interface{ CloseWrite() error })
	if !ok {
		return fmt.Errorf("connection has the type %T; expected one with CloseWrite", conn)
	}
	if err := half.CloseWrite(); err != nil {
		return err
	}
	got, err := io.ReadAll(io.LimitReader(conn, 1024))
	if err != nil {
		return fmt.Errorf("the server did not close the connection after the client: %w", err)
	}
	if rest := strings.ReplaceAll(string(got), Heartbeat, ""); rest != "" {
		return fmt.Errorf("answer to a line is %q; expected nothing but %q", rest, Heartbeat)
	}
	return nil
}

// checkPubSubPing sends PING and checks that the server answers with PONG. The server may send an INFO line first, as
// NATS servers do.
func checkPubSubPing(conn net.Conn) error {
	if _, err := io.WriteString(conn, "PING\r\n"); err != nil {
		return err
	}
	lines := bufio.NewReaderSize(conn, 4096)
	for range 2 {
		switch line, err := lines.ReadString('\n'); {
		case err != nil:
			return fmt.Errorf("incomplete answer to PING: %q: %w", line, err)
		case line == "+PONG\r\n" || line == "PONG\r\n":
			return nil
		case !strings.HasPrefix(line, "INFO "):
			return fmt.Errorf("answer to PING is %q; expected PONG", line)
		}
	}
	return errors.New("PING was answered with two INFO lines; expected PONG")
}

func checkHTTPHello(conn net.Conn) error {
	if _, err := fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %v\r\n\r\n", conn.RemoteAddr()); err != nil {
		return err
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return fmt.Errorf("no answer to GET: %w", err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, int64(len(HelloText)+1)))
	if err != nil {
		return fmt.Errorf("no answer to GET: %w", err)
	}
	if answer.StatusCode != http.StatusOK || string(text) != HelloText {
		return fmt.Errorf("answer to GET is %s and %q; expected 200 and %q", answer.Status, text, HelloText)
	}
	return nil
}
