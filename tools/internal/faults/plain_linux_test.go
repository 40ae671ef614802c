package faults

import (
	"bufio"
	"net"
	"os"

	"github.com/myriad-go/myriad/tcp"
)

// plain, as a model, is no server of this module but what most people write on
// package net, to compare with: a goroutine for each connection, and no limits.
const plain = "plain"

// plainMain is serverMain with it. It ends with its process.
func plainMain(sp spec) error {
	l, err := net.Listen("tcp", sp.Addr)
	if err != nil {
		return err
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go plainEcho(c)
		}
	}()
	return Obey(os.Stdin, os.Stdout, l.Addr().String(), map[string]func() any{
		"stats":  func() any { return tcp.Stats{} },
		"memory": func() any { return readHeap() },
	})
}

// plainEcho answers each line with itself, and writes when no further line is at hand.
func plainEcho(c net.Conn) {
	defer c.Close()
	in, out := bufio.NewReader(c), bufio.NewWriter(c)
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return
		}
		out.Write(line)
		if in.Buffered() == 0 && out.Flush() != nil {
			return
		}
	}
}
