import java.io.*;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import javax.net.ssl.*;

class Client {
	public static void main(String[] args) throws Exception {
		KeyStore trusted = KeyStore.getInstance(KeyStore.getDefaultType());
		trusted.load(null, null);
		try (InputStream cert = new FileInputStream(args[2])) {
			trusted.setCertificateEntry("server", CertificateFactory.getInstance("X.509").generateCertificate(cert));
		}
		TrustManagerFactory managers = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
		managers.init(trusted);
		SSLContext context = SSLContext.getInstance("TLS");
		context.init(null, managers.getTrustManagers(), null);
		byte[] sent = System.in.readAllBytes();
		try (SSLSocket c = (SSLSocket) context.getSocketFactory().createSocket(args[0], Integer.parseInt(args[1]))) {
			SSLParameters parameters = c.getSSLParameters();
			parameters.setEndpointIdentificationAlgorithm("HTTPS");
			c.setSSLParameters(parameters);
			c.getOutputStream().write(sent);
			System.out.write(c.getInputStream().readNBytes(sent.length));
			System.out.flush();
		}
	}
}
