import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermission;
import java.util.EnumSet;
import java.util.Set;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * Hadoop's local file system, which sets a permission by a call instead of a process of its own:
 * Spark has no native library of Hadoop with it, and writes about nine files and folders a job.
 */
public class LocalFiles extends LocalFileSystem {
    public LocalFiles() {
        super(new Raw());
    }

    private static class Raw extends RawLocalFileSystem {
        @Override
        public void setPermission(Path path, FsPermission permission) throws IOException {
            PosixFilePermission[] all = PosixFilePermission.values();
            Set<PosixFilePermission> given = EnumSet.noneOf(PosixFilePermission.class);
            for (int place = 0; place < all.length; place++) {
                if ((permission.toShort() >> (all.length - 1 - place) & 1) == 1) {
                    given.add(all[place]);
                }
            }
            Files.setPosixFilePermissions(pathToFile(path).toPath(), given);
        }
    }
}
