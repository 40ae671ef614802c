package lab

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// The protocols that a server can be asked to speak.
const (
	// Echo answers with the bytes that came, as they come.
	Echo = "echo"
	// Lines answers each line, a message that ends in "\n", with itself.
	Lines = "lines"
	// HTTP answers each HTTP/1.1 GET of "/" with status 200 and the text
	// "Hello, World!", with its Content-Length. Other fields are as the
	// server likes; all but a Date stay the same.
	HTTP = "http"
)

// appList names them in errors.
const appList = Echo + ", " + Lines + " or " + HTTP

func isApp(name string) bool { return name == Echo || name == Lines || name == HTTP }

// helloText is the text of every HTTP answer.
const helloText = "Hello, World!"

// ask has a server answer once over a new connection, and checks the answer.
func ask(conn net.Conn, app string) error {
	// A port that nobody listens on can connect to itself.
	if conn.LocalAddr().String() == conn.RemoteAddr().String() {
		return errors.New("connection refused")
	}
	if err := conn.SetDeadline(time.Now().Add(probeBound)); err != nil {
		return err
	}
	if app == HTTP {
		return askHTTP(conn)
	}
	return askEcho(conn)
}

// askEcho has lines echoed. They are ten because a server that others have
// published, and that is compared too, answers every tenth line only.
func askEcho(conn net.Conn) error {
	const lines = "ping\nping\nping\nping\nping\nping\nping\nping\nping\nping\n"
	if _, err := io.WriteString(conn, lines); err != nil {
		return err
	}
	answer := make([]byte, len(lines))
	if n, err := io.ReadFull(conn, answer); err != nil {
		return fmt.Errorf("ten lines \"ping\" were not echoed but for %q: %w", answer[:n], err)
	}
	if string(answer) != lines {
		return fmt.Errorf("ten lines \"ping\" were answered with %q", answer)
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
