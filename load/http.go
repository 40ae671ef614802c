package load

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"time"
)

// learn sends the message once, on a connection of its own, and makes the
// answer what is expected of every answer. It takes at most ConnectTimeout.
func (c *Config) learn(ctx context.Context, to target) error {
	ctx, cancel := context.WithTimeout(ctx, c.ConnectTimeout)
	defer cancel()
	var dialer net.Dialer
	if len(c.Sources) > 0 {
		dialer.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(c.Sources[0], 0))
	}
	network, address := to.dialName()
	plain, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		return err
	}
	defer plain.Close()
	defer context.AfterFunc(ctx, func() { _ = plain.SetDeadline(time.Unix(1, 0)) })()
	if tcp, ok := plain.(*net.TCPConn); ok && !c.Graceful {
		_ = tcp.SetLinger(0) // an error costs an address in TIME_WAIT
	}
	conn, err := c.encrypt(ctx, plain)
	if err != nil {
		return err
	}
	if _, err := conn.Write(c.Message); err != nil {
		return err
	}
	c.Answer, err = readAnswer(conn)
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return err
	}
	c.free, c.freeEnd = dateIn(c.Answer)
	return nil
}

func readAnswer(conn io.Reader) ([]byte, error) {
	var raw bytes.Buffer
	in := bufio.NewReader(io.TeeReader(io.LimitReader(conn, 2*MaxMessage), &raw))
	answer, err := http.ReadResponse(in, nil)
	if err != nil {
		return nil, err
	}
	// The body needs no closing, which would read it to its end: the
	// connection is closed soon.
	switch {
	case answer.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("status %s; expected 200", answer.Status)
	case answer.ContentLength < 0:
		return nil, errors.New("an answer without Content-Length; expected one, so that answers can be compared, or a match of http, which compares nothing")
	case answer.ContentLength > MaxMessage:
		return nil, fmt.Errorf("an answer with %d bytes of content; expected at most %d", answer.ContentLength, MaxMessage)
	case answer.Close:
		return nil, errors.New("the server closes the connection; expected it to stay open")
	}
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		return nil, err
	}
	if n := in.Buffered(); n > 0 {
		return nil, fmt.Errorf("%d bytes behind the answer; expected one answer to one request", n)
	}
	return raw.Bytes(), nil
}

// dateIn finds the value of the Date in an answer's head: where it begins and
// ends, both 0 if there is none. Only a value in the fixed-length format that
// servers must send may differ from answer to answer.
func dateIn(answer []byte) (from, to int) {
	head, _, _ := bytes.Cut(answer, []byte("\r\n\r\n"))
	for at := 0; at < len(head); {
		line, _, _ := bytes.Cut(head[at:], []byte("\r\n"))
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimSpace(value)
		if _, err := time.Parse(http.TimeFormat, string(value)); err == nil && bytes.EqualFold(name, []byte("Date")) {
			from = at + bytes.Index(line, value)
			return from, from + len(value)
		}
		at += len(line) + len("\r\n")
	}
	return 0, 0
}
