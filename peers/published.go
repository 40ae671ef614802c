package main

import (
	"bufio"
	"net"
)

// These are baselines that others have published, as they published them, with
// what is wrong with them.

// linesEach writes each line by itself: a system call for each.
func linesEach(conn net.Conn, _ settings) {
	in := bufio.NewReader(conn)
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return
		}
		if _, err := conn.Write([]byte(line)); err != nil {
			return
		}
	}
}

// linesTenth flushes every tenth line only. Up to nine answers to a connection
// that falls silent, or that ends, are never sent: a server must not do that.
func linesTenth(conn net.Conn, _ settings) {
	const every = 10
	in := bufio.NewReader(conn)
	out := bufio.NewWriter(conn)
	for n := 1; ; n++ {
		line, err := in.ReadString('\n')
		if err != nil {
			return
		}
		if _, err := out.WriteString(line); err != nil {
			return
		}
		if n%every != 0 {
			continue
		}
		if err := out.Flush(); err != nil {
			return
		}
	}
}
