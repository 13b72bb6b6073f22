package lancespark;

/** `spark.sql.catalog.lance = lancespark.LanceCatalog`, and `.root` and `.storage.*` of it, before Spark 4.3. */
public final class LanceCatalog extends AbstractLanceCatalog {}
