// Package websocket implements the client side of the WebSocket protocol, RFC 6455, without I/O: it
// appends output to a slice and parses input from one. It suits a million connections, which cannot
// have a goroutine or a buffer each; a Reader has 16 bytes.
//
//	out = AppendRequest(out, host, path, header, key)  the handshake's request
//	n, err := CheckHandshakeResponse(in, key)                   the server's response
//	out = AppendMaskedFrame(out, OpText, mask, message)      each message is a frame
//	part, n, err := reader.Next(in)                    input from the server
//
// Violations of RFC 6455 by the server are errors, with these exceptions: UTF-8 is not checked,
// neither in text messages nor in the reason of a close, and a subprotocol in the response is not
// compared with those requested. No extension is offered, so messages are never compressed and the
// reserved bits are always 0.
//
// The package sends nothing by itself: the caller answers a Ping with a Pong of the same payload,
// and a Close with a Close.
//
// All functions are safe for concurrent use; a Reader belongs to one goroutine at a time.
package websocket
