package testkit

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
)

func RESPCommand(words ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(words))
	for _, w := range words {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(w), w)
	}
	return b.String()
}

func ReadRESP(r *bufio.Reader) (raw string, err error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return line, err
	}
	if len(line) < 3 {
		return line, fmt.Errorf("%q is not a line of RESP", line)
	}
	n, _ := strconv.Atoi(strings.TrimSpace(line[1:]))
	switch line[0] {
	case '+', '-', ':', '_', ',', '#', '(':
		return line, nil
	case '$', '=', '!':
		if n < 0 {
			return line, nil
		}
		b := make([]byte, n+2)
		_, err := io.ReadFull(r, b)
		return line + string(b), err
	case '%':
		n *= 2
	case '*', '~', '>':
	default:
		return line, fmt.Errorf("%q does not start a RESP value", line)
	}
	for range n {
		part, err := ReadRESP(r)
		line += part
		if err != nil {
			return line, err
		}
	}
	return line, nil
}
